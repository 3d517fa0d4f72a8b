//! Drawn faults, one job each: a table of what became of them, and a failure if any ended wrongly.

use std::collections::BTreeMap;

use anyhow::ensure;
use lockstep_api::{FaultKind, FaultSpec, FaultTarget, FaultView};
use lockstep_e2e::{Dice, Draw, Outcome, Service};

use crate::report::{median, say};

/// Hits `count` jobs with faults drawn from `seed`.
pub(crate) async fn chaos(count: u32, seed: u64) -> anyhow::Result<()> {
    let mut service = Service::start_for_faults().await?;
    let references = service.undisturbed().await?;
    let mut dice = Dice::new(seed);
    let mut outcomes = Vec::new();
    say(&format!(
        "{:>4} {:5} {:50} {:20} {:>8} {:>8} {:>8}",
        "run", "lanes", "fault", "verdict", "detected", "named", "repaired"
    ));
    for run in 1..=count {
        let draw = dice.draw();
        let outcome = service.disturbed(draw, &references).await?;
        say(&line(run, draw, &outcome));
        outcomes.push(outcome);
    }
    summary(&outcomes);
    let wrong = outcomes.iter().filter(|it| !it.wrong.is_empty()).count();
    ensure!(wrong == 0, "{wrong} of {count} faults ended wrongly (seed {seed})");
    say(&format!("{count} of {count} as expected (seed {seed})"));
    Ok(())
}

fn line(
    run: u32,
    Draw { fault, has_lanes }: Draw,
    Outcome { fault: view, wrong }: &Outcome,
) -> String {
    let whom = match fault.target {
        FaultTarget::Rank => "rank",
        FaultTarget::Link => "links of rank",
        FaultTarget::Agent => "agent of rank",
    };
    let FaultSpec { kind, rank, step, phase, .. } = fault;
    let what = format!("{kind} {whom} {rank} in step {step}, {phase}");
    let lanes = if has_lanes { 2 } else { 1 };
    let verdict = view.verdict.map_or("–", lockstep_api::FailureCode::as_str);
    let seconds = |it: Option<f64>| it.map_or_else(|| "–".to_owned(), |it| format!("{it:.2} s"));
    let wrong =
        if wrong.is_empty() { String::new() } else { format!("  WRONG: {}", wrong.join("; ")) };
    format!(
        "{run:>4} {lanes:<5} {what:50} {verdict:20} {:>8} {:>8} {:>8}{wrong}",
        seconds(view.detected_after),
        seconds(view.named_after),
        seconds(view.repaired_after),
    )
}

fn summary(outcomes: &[Outcome]) {
    let mut kinds: BTreeMap<(FaultTarget, FaultKind), Vec<&FaultView>> = BTreeMap::new();
    for outcome in outcomes {
        kinds
            .entry((outcome.fault.fault.target, outcome.fault.fault.kind))
            .or_default()
            .push(&outcome.fault);
    }
    for ((target, kind), views) in kinds {
        let middle = |of: fn(&FaultView) -> Option<f64>| {
            let mut times: Vec<f64> = views.iter().filter_map(|it| of(it)).collect();
            times.sort_by(f64::total_cmp);
            median(&times).map_or_else(|| "–".to_owned(), |it| format!("{it:.2} s"))
        };
        let (named, repaired) = (middle(|it| it.named_after), middle(|it| it.repaired_after));
        say(&format!(
            "{kind} {target}: {} times; named after {named}, repaired after {repaired} (medians)",
            views.len()
        ));
    }
}
