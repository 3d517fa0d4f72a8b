//! Every verb and flag. The help text is a contract: its snapshot is under test.

pub(crate) mod sample;

use std::net::SocketAddr;

use camino::Utf8PathBuf;
use clap::{Args, Parser, Subcommand};
use lockstep_api::{JobState, Priority, RankCount, RankRange, Role, TokenId};

use sample::SampleArgs;

/// Trains models on machines that several teams share.
#[derive(Debug, Parser)]
#[command(name = "lockstep", version, propagate_version = true, max_term_width = 100)]
#[command(after_help = "\
Exit codes: 0 done, 1 the job (or `up`) failed, 2 wrong use or a job that was refused,
3 not found, 4 no or not enough rights, 5 conflict, 6 the server cannot be reached, 130 interrupted.")]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) verb: Verb,
    #[command(flatten)]
    pub(crate) global: Global,
}

/// Flags of every verb.
#[derive(Debug, Clone, Args)]
pub(crate) struct Global {
    /// Write JSON to standard output
    #[arg(long, global = true, help_heading = "Everywhere")]
    pub(crate) json: bool,
    /// Section of the settings file to use
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_PROFILE",
        hide_env_values = true,
        value_name = "NAME",
        default_value = "default",
        help_heading = "Everywhere"
    )]
    pub(crate) profile: String,
    /// The server, in place of the profile's
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_URL",
        hide_env_values = true,
        value_name = "URL",
        help_heading = "Everywhere"
    )]
    pub(crate) url: Option<String>,
    /// The token, in place of the profile's; safer by environment
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_TOKEN",
        hide_env_values = true,
        value_name = "TOKEN",
        help_heading = "Everywhere"
    )]
    pub(crate) token: Option<String>,
    /// The settings file [default: ~/.config/lockstep/config.toml]
    #[arg(
        long,
        global = true,
        env = "LOCKSTEP_CONFIG",
        hide_env_values = true,
        value_name = "FILE",
        help_heading = "Everywhere"
    )]
    pub(crate) config: Option<Utf8PathBuf>,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Start everything on this machine: database, server, one agent
    Up(UpArgs),
    /// Upload a job with its components and data, and queue it
    Submit(SubmitArgs),
    /// Submit a job and follow it to its end
    Run(SubmitArgs),
    /// List jobs, newest first
    Ps(PsArgs),
    /// Show one job: attempts, ranks, verdicts, checkpoints, metrics
    Show(JobArgs),
    /// Print a job's log
    Logs(LogsArgs),
    /// Show which ranks have entered the collective under way, and what the others do
    Ranks(RanksArgs),
    /// Write what each rank did in its steps to a file for a trace viewer
    Trace(TraceArgs),
    /// Ask a job to end
    Cancel(JobArgs),
    /// Set a job aside: its ranks leave after a checkpoint
    Pause(JobArgs),
    /// Let a paused job go on from its newest checkpoint
    Resume(JobArgs),
    /// List, fetch and pin checkpoints
    #[command(subcommand)]
    Checkpoint(CheckpointVerb),
    /// Go on with a text, by a language model's checkpoint
    Sample(SampleArgs),
    /// List nodes and their slots
    Nodes,
    /// Make a node free, or let it work again
    #[command(subcommand)]
    Node(NodeVerb),
    /// Make and revoke access tokens
    #[command(subcommand)]
    Token(TokenVerb),
    /// Make tokens for nodes to join with
    #[command(subcommand)]
    JoinToken(JoinTokenVerb),
    /// Say who the token speaks for
    Whoami,
}

/// Of `up`.
#[derive(Debug, Clone, Args)]
pub(crate) struct UpArgs {
    /// Folder for everything [default: /var/lib/lockstep or ~/.local/share/lockstep]
    #[arg(long, env = "LOCKSTEP_DATA_DIR", hide_env_values = true, value_name = "FOLDER")]
    pub(crate) data_dir: Option<Utf8PathBuf>,
    /// Address of API and web page; port 0 picks one
    #[arg(
        long,
        env = "LOCKSTEP_LISTEN",
        hide_env_values = true,
        value_name = "ADDRESS",
        default_value = "127.0.0.1:7878"
    )]
    pub(crate) listen: SocketAddr,
    /// Ranks this machine runs at once; they share its cores and memory evenly [default: its cores]
    #[arg(long, env = "LOCKSTEP_SLOTS", hide_env_values = true, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) slots: Option<u32>,
    /// An existing database, in place of a private one
    #[arg(long, env = "LOCKSTEP_DATABASE_URL", hide_env_values = true, value_name = "URL")]
    pub(crate) database_url: Option<String>,
    /// Folder of `postgres` and `initdb` [default: found]
    #[arg(
        long,
        env = "LOCKSTEP_PG_BIN",
        hide_env_values = true,
        value_name = "FOLDER",
        conflicts_with = "database_url"
    )]
    pub(crate) postgres_bin: Option<Utf8PathBuf>,
    /// Where chunks of data and checkpoints go: postgres:, file:///folder, s3://bucket/prefix, gs://…, az://… [default: the
    /// database]
    #[arg(long, env = "LOCKSTEP_CHUNK_STORE", hide_env_values = true, value_name = "URL")]
    pub(crate) chunk_store: Option<String>,
    /// Write {url, token, profile} as JSON here once ready
    #[arg(long, value_name = "FILE")]
    pub(crate) ready_file: Option<Utf8PathBuf>,
}

/// Of `submit` and `run`.
#[derive(Debug, Clone, Args)]
pub(crate) struct SubmitArgs {
    /// The job, TOML or JSON. Paths in it (./ ../ /) are relative to it
    #[arg(value_name = "FILE")]
    pub(crate) file: Utf8PathBuf,
    /// Sets gang.ranks: a number, or MIN-MAX for a gang that grows and shrinks
    #[arg(long, value_name = "N|MIN-MAX", value_parser = rank_count, allow_negative_numbers = true)]
    pub(crate) ranks: Option<RankCount>,
    /// Sets name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Sets priority: 0 to 99, more goes first. Above 50: admins only
    #[arg(long, value_name = "N", value_parser = priority, allow_negative_numbers = true)]
    pub(crate) priority: Option<u32>,
    /// Sets one field: train.seed=9, ddp.reduction=fixed-tree. May be repeated
    #[arg(long = "set", value_name = "FIELD=VALUE")]
    pub(crate) set: Vec<String>,
    /// Submitting again with the same key gives the first job [default: a new one each time]
    #[arg(long, value_name = "KEY")]
    pub(crate) idempotency_key: Option<String>,
}

/// Of `ps`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PsArgs {
    /// Only jobs in this state: queued, active, succeeded, failed, cancelled, …
    #[arg(long, value_parser = parse_state)]
    pub(crate) state: Option<JobState>,
    /// At most so many
    #[arg(short = 'n', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub(crate) limit: u32,
    /// Go on from the next_cursor of an earlier list
    #[arg(long)]
    pub(crate) cursor: Option<String>,
}

/// A job.
#[derive(Debug, Clone, Args)]
pub(crate) struct JobArgs {
    /// Id, or a name (the newest job of that name)
    pub(crate) job: String,
}

/// Of `logs`.
#[derive(Debug, Clone, Args)]
pub(crate) struct LogsArgs {
    /// Id, or a name (the newest job of that name)
    pub(crate) job: String,
    /// Go on as lines come, until the job has ended
    #[arg(short, long)]
    pub(crate) follow: bool,
    /// Begin with the last so many lines [default: all]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=5000))]
    pub(crate) tail: Option<u32>,
}

/// Of `ranks`.
#[derive(Debug, Clone, Args)]
pub(crate) struct RanksArgs {
    /// Id, or a name (the newest job of that name)
    pub(crate) job: String,
    /// Look again every second, until the job has ended
    #[arg(short, long)]
    pub(crate) watch: bool,
}

/// Of `trace`.
#[derive(Debug, Clone, Args)]
#[command(after_help = "\
FILE ends in .json (Chrome's trace event format: ui.perfetto.dev, speedscope, chrome://tracing), or in
.perfetto-trace or .pftrace (Perfetto's own, for large traces). Times of several nodes are laid side by side
by their wall clocks, as of the beginning of an attempt. Which steps there are, `[trace]` of the job says.")]
pub(crate) struct TraceArgs {
    /// Id, or a name (the newest job of that name)
    pub(crate) job: String,
    /// Where to
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Utf8PathBuf,
    /// Only this step and later ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) from_step: Option<i64>,
    /// Only this step and earlier ones
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
    pub(crate) to_step: Option<i64>,
    /// Write over what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// `checkpoint …`
#[derive(Debug, Subcommand)]
pub(crate) enum CheckpointVerb {
    /// List a job's checkpoints, newest first
    List(JobArgs),
    /// Fetch a checkpoint as one safetensors file
    Download(DownloadArgs),
    /// Keep a checkpoint until it is unpinned, whatever keep_last and keep_best say
    Pin(PinArgs),
    /// Leave a checkpoint to keep_last and keep_best: if they do not keep it, it is gone at once
    Unpin(PinArgs),
}

/// Of `checkpoint pin` and `checkpoint unpin`.
#[derive(Debug, Clone, Args)]
pub(crate) struct PinArgs {
    /// Checkpoint, or a job (its newest checkpoint)
    #[arg(value_name = "JOB|CHECKPOINT")]
    pub(crate) of: String,
    /// Of a job: the checkpoint after so many steps
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<i64>,
}

/// Of `checkpoint download`.
#[derive(Debug, Clone, Args)]
#[expect(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub(crate) struct DownloadArgs {
    /// Checkpoint, or a job (its newest checkpoint)
    #[arg(value_name = "JOB|CHECKPOINT")]
    pub(crate) of: String,
    /// Of a job: the checkpoint after so many steps
    #[arg(long, value_name = "N")]
    pub(crate) step: Option<i64>,
    /// Where to [default: NAME-STEP.safetensors]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<Utf8PathBuf>,
    /// Only the model, as torchvision and Hugging Face load it: not what the optimizer keeps
    #[arg(long)]
    pub(crate) model: bool,
    /// With --model: the running mean of the weights, which a job with `train.ema` keeps
    #[arg(long, requires = "model")]
    pub(crate) ema: bool,
    /// Write over what is there
    #[arg(long)]
    pub(crate) force: bool,
}

/// `node …`
#[derive(Debug, Subcommand)]
pub(crate) enum NodeVerb {
    /// Take no new work, and let what runs there go on elsewhere from a checkpoint
    Drain(NodeArgs),
    /// Take work again
    Undrain(NodeArgs),
    /// End a node's quarantine and forget what it is blamed for
    Release(NodeArgs),
}

/// A node.
#[derive(Debug, Clone, Args)]
pub(crate) struct NodeArgs {
    /// Its name, as `lockstep nodes` shows it
    pub(crate) name: String,
}

/// `token …`
#[derive(Debug, Subcommand)]
pub(crate) enum TokenVerb {
    /// Make an access token. It is shown once
    Create(CreateTokenArgs),
    /// Make a token worthless
    Revoke {
        /// The token's id, as shown when it was made
        id: TokenId,
    },
}

/// Of `token create`.
#[derive(Debug, Clone, Args)]
pub(crate) struct CreateTokenArgs {
    /// For people
    pub(crate) name: String,
    /// What it may do: viewer, member, maintainer, admin
    #[arg(long, default_value = "member", value_parser = parse_role)]
    pub(crate) role: Role,
    /// Lifetime: 30m, 12h, 90d [default: for ever]
    #[arg(long, value_name = "TIME", value_parser = parse_seconds)]
    pub(crate) ttl: Option<u32>,
}

/// `join-token …`
#[derive(Debug, Subcommand)]
pub(crate) enum JoinTokenVerb {
    /// Make a token for `lockstep-agent --join-token`. It is shown once
    Create {
        /// Lifetime: 30m, 12h; at most a day
        #[arg(long, value_name = "TIME", default_value = "1h", value_parser = parse_seconds)]
        ttl: u32,
    },
}

/// `2` or `1-4`
fn rank_count(text: &str) -> Result<RankCount, String> {
    let number = |text: &str| text.trim().parse::<u32>().ok();
    let count = match text.split_once('-') {
        None => number(text).map(RankCount::Fixed),
        Some((min, max)) => number(min)
            .zip(number(max))
            .map(|(min, max)| RankCount::Elastic(RankRange { min, max })),
    };
    count.ok_or_else(|| "expected a number of ranks, or two with a dash between: 1-4".to_owned())
}

/// `50`
fn priority(text: &str) -> Result<u32, String> {
    let most = Priority::MAX.0;
    let value = text.parse().ok().filter(|value| *value <= most);
    value.ok_or_else(|| format!("expected a whole number, 0 to {most}"))
}

/// A job's state by its name.
fn parse_state(text: &str) -> Result<JobState, String> {
    text.parse().map_err(|_| one_of(JobState::ALL))
}

/// A role by its name.
fn parse_role(text: &str) -> Result<Role, String> {
    text.parse().map_err(|_| one_of(Role::ALL))
}

fn one_of<T: ToString>(values: &[T]) -> String {
    let names: Vec<String> = values.iter().map(ToString::to_string).collect();
    format!("expected one of {}", names.join(", "))
}

/// `90s`, `30m`, `12h`, `7d` → seconds.
fn parse_seconds(text: &str) -> Result<u32, String> {
    let expected =
        || format!("expected a number and a unit (s, m, h, d) such as 12h, got {text:?}");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: u32 = number.parse().map_err(|_| expected())?;
    let factor = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 60 * 60,
        "d" => 24 * 60 * 60,
        _ => return Err(expected()),
    };
    number.checked_mul(factor).filter(|seconds| 0 < *seconds).ok_or_else(expected)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_says_the_same_as_last_time() {
        let mut command = Cli::command().term_width(100);
        command.build();
        let mut text = String::new();
        write_help(&mut command, &mut text);
        insta::assert_snapshot!(text);
    }

    fn write_help(command: &mut clap::Command, text: &mut String) {
        text.push_str(&format!("-------- {}\n", command.get_name()));
        text.push_str(&command.render_help().to_string());
        for verb in command.get_subcommands_mut().filter(|verb| verb.get_name() != "help") {
            write_help(verb, text);
        }
    }

    #[test]
    fn a_world_size_is_a_number_or_two_with_a_dash_between() {
        assert_eq!(rank_count("2"), Ok(RankCount::Fixed(2)));
        assert_eq!(rank_count("1-4"), Ok(RankCount::Elastic(RankRange { min: 1, max: 4 })));
        for text in ["", "a", "1-", "-4", "1-2-3", "1..4"] {
            assert!(rank_count(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_wrong_number_is_told_what_is_expected_negative_ones_too() {
        let told = |flag: &str, value: &str| {
            let words = ["lockstep", "submit", "job.toml", flag, value];
            Cli::try_parse_from(words).map(drop).map_err(|error| error.to_string())
        };
        assert_eq!(told("--priority", "99"), Ok(()));
        for value in ["100", "-1", "5.5", "high"] {
            let error = told("--priority", value).unwrap_err();
            assert!(error.contains("expected a whole number, 0 to 99"), "{error}");
        }
        let error = told("--ranks", "-1").unwrap_err();
        assert!(error.contains("expected a number of ranks, or two with a dash"), "{error}");
    }

    #[test]
    fn a_wrong_state_or_role_is_told_what_there_is() {
        assert_eq!(parse_state("queued"), Ok(JobState::Queued));
        assert!(parse_state("done").unwrap_err().contains("one of queued, active, "));
        assert_eq!(
            parse_role("nobody").unwrap_err(),
            "expected one of viewer, member, maintainer, admin"
        );
    }

    #[test]
    fn lifetimes_are_read_in_any_unit_and_never_zero() {
        assert_eq!(parse_seconds("90s"), Ok(90));
        assert_eq!(parse_seconds("12h"), Ok(43_200));
        assert_eq!(parse_seconds("7d"), Ok(604_800));
        for text in ["", "h", "0s", "5", "1w", "99999999d", "-1h"] {
            assert!(parse_seconds(text).is_err(), "{text}");
        }
    }
}
