//! The other programs of the platform, which lie beside this one.

use anyhow::Context as _;
use camino::Utf8PathBuf;

/// The program of that name.
pub(crate) fn beside_us(name: &str) -> anyhow::Result<Utf8PathBuf> {
    let own = std::env::current_exe().context("finding our own program")?;
    let own = Utf8PathBuf::try_from(own).context("finding our own program")?;
    let path = own.with_file_name(name);
    anyhow::ensure!(path.is_file(), "{name} is missing: expected it at {path}");
    Ok(path)
}
