//! Flags of `sample`.

use clap::Args;
use lockstep_api::MAX_SAMPLE_TOKENS;

/// Of `sample`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SampleArgs {
    /// Id, or a name (the newest job of that name)
    pub(crate) job: String,
    /// What the text begins with: ASCII, at most model.n_positions characters [default: a line break]
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub(crate) prompt: String,
    /// How many tokens to make, up to 100000
    #[arg(
        long,
        value_name = "N",
        default_value_t = 500,
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_SAMPLE_TOKENS))
    )]
    pub(crate) tokens: u32,
    /// 0 always takes the likeliest token; the higher, the more varied
    #[arg(
        long,
        value_name = "T",
        default_value = "1",
        allow_negative_numbers = true,
        value_parser = parse_temperature
    )]
    pub(crate) temperature: f64,
    /// Draw from so many of the likeliest tokens [default: all]
    #[arg(
        long,
        value_name = "K",
        allow_negative_numbers = true,
        value_parser = clap::value_parser!(u32).range(1..)
    )]
    pub(crate) top_k: Option<u32>,
    /// The same seed makes the same text
    #[arg(long, value_name = "S", default_value_t = 0)]
    pub(crate) seed: u64,
    /// The checkpoint after so many steps
    #[arg(long, value_name = "STEP|latest", default_value = "latest", value_parser = parse_step)]
    pub(crate) step: SampleStep,
    /// With the running mean of the weights, of a job with train.ema
    #[arg(long)]
    pub(crate) ema: bool,
}

/// A step, or the latest one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SampleStep(pub(crate) Option<i64>);

/// From 0 up, and finite.
fn parse_temperature(text: &str) -> Result<f64, String> {
    let value = text.parse().ok().filter(|value: &f64| value.is_finite() && 0.0 <= *value);
    value.ok_or_else(|| "expected a number from 0 up".to_owned())
}

/// `latest`, or a number of steps.
fn parse_step(text: &str) -> Result<SampleStep, String> {
    if text == "latest" {
        return Ok(SampleStep(None));
    }
    let step = text.parse().ok().filter(|step| 0 <= *step);
    let step = step.ok_or_else(|| "expected a number of steps or latest".to_owned())?;
    Ok(SampleStep(Some(step)))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn what_a_sample_cannot_be_made_with_is_refused_with_flag_value_and_what_was_expected() {
        let refusal = |flag: &str, value: &str| {
            let words = ["lockstep", "sample", "a", flag, value];
            Cli::try_parse_from(words).unwrap_err().to_string()
        };
        let cases = [
            ("--tokens", "0", "1..=100000"),
            ("--tokens", "100001", "1..=100000"),
            ("--tokens", "-1", "1..=100000"),
            ("--temperature", "-0.5", "expected a number from 0 up"),
            ("--temperature", "nan", "expected a number from 0 up"),
            ("--temperature", "inf", "expected a number from 0 up"),
            ("--top-k", "0", "1.."),
            ("--step", "last", "expected a number of steps or latest"),
            ("--seed", "x", "invalid digit"),
        ];
        for (flag, value, expected) in cases {
            let found = refusal(flag, value);
            for part in [flag, value, expected] {
                assert!(found.contains(part), "{flag} {value}: {found}");
            }
        }
        assert_eq!(parse_step("latest"), Ok(SampleStep(None)));
        assert_eq!(parse_step("600"), Ok(SampleStep(Some(600))));
        assert_eq!(parse_temperature("0"), Ok(0.0));
    }
}
