//! What an agent that was killed has left in its groups.

use std::io;
use std::time::Instant;

use anyhow::{Context as _, ensure};
use camino::Utf8Path;

use super::folder::{Folder, Kind};
use super::{LEFTOVER_LIMIT, LEFTOVER_LOOK, described};

/// Ends what is in the groups that `record` names, and removes them.
pub(super) fn end_leftovers(name: &str, record: &Utf8Path) -> anyhow::Result<()> {
    let text = match std::fs::read_to_string(record) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other.with_context(|| format!("cannot read {record}"))?,
    };
    // Whatever the file says: nothing but a group of this name is this agent's to end.
    for path in text.lines().map(Utf8Path::new).filter(|it| it.file_name() == Some(name)) {
        let left = Folder::new(Kind::TreeV2, path.to_owned());
        let own = i32::try_from(std::process::id()).unwrap_or(0);
        let until = Instant::now() + LEFTOVER_LIMIT;
        while left.remove().is_err() {
            let found = left.processes();
            if found.contains(&own) {
                break;
            }
            ensure!(
                Instant::now() < until,
                "what an agent before left in {path} does not die: {}",
                described(&found)
            );
            left.kill();
            std::thread::sleep(LEFTOVER_LOOK);
        }
    }
    Ok(())
}
