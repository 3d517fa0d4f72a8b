//! `trace`.

use std::fs::Permissions;
use std::io::{BufWriter, Write as _};
use std::os::unix::fs::PermissionsExt as _;

use anyhow::Context as _;
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{JobId, ReadTimeline, Step, StepTimeline};
use lockstep_client::Client;
use serde::Serialize;

use crate::args::{Global, TraceArgs};
use crate::failure::{Failure, there_already};
use crate::out::Out;
use crate::settings::client;
use crate::trace::{Summary, Trace, encode_perfetto, write_chrome};
use crate::verbs::find;

/// Rows of one request: a row is one rank's step.
const PAGE: u32 = 500;
/// Most rows of one file: they lie in memory meanwhile.
const MAX_ROWS: usize = 200_000;

/// What `trace --json` prints.
#[derive(Debug, Serialize)]
struct Written {
    path: Utf8PathBuf,
    ranks: usize,
    steps: usize,
    spans: usize,
    dropped: i64,
}

/// What a file's name asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Chrome,
    Perfetto,
}

impl Format {
    fn of(path: &Utf8Path) -> Result<Self, Failure> {
        match path.extension() {
            Some("json") => Ok(Self::Chrome),
            Some("perfetto-trace" | "pftrace") => Ok(Self::Perfetto),
            Some(_) | None => Err(Failure::Usage(format!(
                "--output: expected a name that ends in .json, .perfetto-trace or .pftrace, got {path}"
            ))),
        }
    }
}

/// Writes a job's timeline to a file.
pub(crate) async fn trace(global: &Global, args: TraceArgs, out: Out) -> anyhow::Result<()> {
    let path = &args.output;
    let format = Format::of(path)?;
    if !args.force && path.exists() {
        return Err(there_already(path).into());
    }
    let client = client(global)?;
    let job = find::job(&client, &args.job).await?;
    let name = &job.summary.name;
    let spinner = out.spinner(format!("reading the timeline of {name}"));
    let rows = read(&client, job.summary.id, &args).await;
    spinner.finish_and_clear();
    let Some(trace) = Trace::new(&rows?) else {
        let what = match (args.from_step, args.to_step) {
            (None, None) => String::new(),
            (Some(from), None) => format!(" from step {from} on"),
            (None, Some(to)) => format!(" up to step {to}"),
            (Some(from), Some(to)) => format!(" from step {from} to {to}"),
        };
        let why = match job.spec.trace.is_on() {
            true => {
                "none has been reported yet, or no such step is timed (see `[trace]` of the job)"
            }
            false => "the job is not timed: `trace.first_steps` and `trace.every_steps` are 0",
        };
        return Err(Failure::NotFound(format!("{name} has no spans{what}: {why}")).into());
    };
    write(&trace, format, name, &args)?;
    let Summary { ranks, steps, spans, dropped } = trace.summary;
    if 0 < dropped {
        out.note(&format!(
            "{dropped} spans were left out: they came faster than they could be kept"
        ));
    }
    out.note(&format!(
        "{spans} spans of {steps} steps on {ranks} ranks; ui.perfetto.dev shows them"
    ));
    let written = Written { path: path.clone(), ranks, steps, spans, dropped };
    out.data(&written, |written| written.path.to_string())
}

async fn read(client: &Client, id: JobId, args: &TraceArgs) -> anyhow::Result<Vec<StepTimeline>> {
    let mut query = ReadTimeline {
        from_step: args.from_step.map(Step),
        to_step: args.to_step.map(Step),
        limit: Some(PAGE),
        ..ReadTimeline::default()
    };
    let mut rows = Vec::new();
    loop {
        let page = client.timeline(id, &query).await?;
        rows.extend(page.items);
        if MAX_ROWS < rows.len() {
            let text = format!(
                "more than {MAX_ROWS} steps of ranks; choose some with --from-step and --to-step"
            );
            return Err(Failure::Usage(text).into());
        }
        match page.next_cursor {
            Some(cursor) => query.cursor = Some(cursor),
            None => return Ok(rows),
        }
    }
}

/// Writes under a temporary name first: a file of that name is a whole one.
fn write(trace: &Trace, format: Format, job: &str, args: &TraceArgs) -> anyhow::Result<()> {
    let path = &args.output;
    let folder = path.parent().filter(|folder| !folder.as_str().is_empty());
    let folder = folder.unwrap_or(Utf8Path::new("."));
    // As any new file: what the umask leaves of it.
    let permissions = Permissions::from_mode(0o666);
    let file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder);
    let mut file = file.with_context(|| format!("making a file in {folder}"))?;
    let written = match format {
        Format::Chrome => {
            let mut to = BufWriter::new(&mut file);
            write_chrome(trace, job, &mut to).and_then(|()| to.flush())
        }
        Format::Perfetto => file.write_all(&encode_perfetto(trace)),
    };
    written.with_context(|| format!("writing {path}"))?;
    let kept = match args.force {
        true => file.persist(path),
        false => file.persist_noclobber(path),
    };
    match kept {
        Ok(_) => Ok(()),
        Err(error) if error.error.kind() == std::io::ErrorKind::AlreadyExists => {
            Err(there_already(path).into())
        }
        Err(error) => Err(error.error).with_context(|| format!("writing {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_file_says_its_format_or_is_refused() {
        let of = |name: &str| Format::of(name.into());
        assert_eq!(of("a/b.json").unwrap(), Format::Chrome);
        assert_eq!(of("b.perfetto-trace").unwrap(), Format::Perfetto);
        assert_eq!(of("b.pftrace").unwrap(), Format::Perfetto);
        for name in ["trace", "trace.txt", "json", ".json"] {
            let error = of(name).unwrap_err().to_string();
            assert!(error.contains(".perfetto-trace") && error.contains(name), "{error}");
        }
    }
}
