//! Compiled components on disk, shared by the processes of one user.
//!
//! A file's name is the hash of engine, machine and settings (wasmtime's own compatibility hash) and the
//! digest of the component. A cache that fails costs a compilation, never a job.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::Write as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::time::SystemTime;

use camino::{Utf8Path, Utf8PathBuf};
use wasmtime::Engine;
use wasmtime::component::Component;

use crate::error::SandboxError;
use crate::trusted_files;

/// Compiled components that are kept; beyond, the oldest go.
const ENTRIES_CAP: usize = 256;

#[derive(Debug)]
pub(crate) struct Cache {
    dir: Utf8PathBuf,
    engine_hash: String,
}

impl Cache {
    /// Makes the folder if it is missing, for this user alone.
    pub(crate) fn open(dir: &Utf8Path, engine: &Engine) -> Result<Self, SandboxError> {
        let dir = dir.join("compiled");
        let failed = |message: String| SandboxError::Cache { path: dir.clone(), message };
        std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir)
            .map_err(|error| failed(error.to_string()))?;
        let data = dir.symlink_metadata().map_err(|error| failed(error.to_string()))?;
        let user = rustix::process::geteuid().as_raw();
        if !data.is_dir() || data.uid() != user || data.mode() & 0o077 != 0 {
            let (mode, owner) = (data.mode() & 0o777, data.uid());
            return Err(failed(format!(
                "expected a folder of user {user} with mode 700, found mode {mode:o} of user {owner}"
            )));
        }
        let mut hasher = DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let engine_hash = format!("{:016x}", hasher.finish());
        Ok(Self { dir, engine_hash })
    }

    /// A component that was compiled before, if it is there and whole.
    pub(crate) fn load(&self, engine: &Engine, digest: &str) -> Option<Component> {
        let path = self.path(digest);
        if !path.is_file() {
            return None;
        }
        match trusted_files::load_compiled(engine, &path) {
            Ok(component) => Some(component),
            Err(error) => {
                tracing::warn!(%path, %error, "a compiled component is unusable and is made again");
                None
            }
        }
    }

    /// Keeps a compiled component.
    pub(crate) fn store(&self, component: &Component, digest: &str) {
        let path = self.path(digest);
        let written = component
            .serialize()
            .map_err(std::io::Error::other)
            .and_then(|code| self.write(&path, &code));
        if let Err(error) = written {
            tracing::warn!(%path, %error, "a compiled component could not be kept");
        }
    }

    fn path(&self, digest: &str) -> Utf8PathBuf {
        self.dir.join(format!("{}-{digest}.cwasm", self.engine_hash))
    }

    /// Under another name first, so that every file with a right name is complete.
    fn write(&self, path: &Utf8Path, code: &[u8]) -> std::io::Result<()> {
        let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&temporary)?;
        file.write_all(code)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        self.remove_oldest()
    }

    fn remove_oldest(&self) -> std::io::Result<()> {
        let mut entries: Vec<(SystemTime, Utf8PathBuf)> = Vec::new();
        for entry in self.dir.read_dir_utf8()? {
            let entry = entry?;
            entries.push((entry.metadata()?.modified()?, entry.into_path()));
        }
        entries.sort();
        let surplus = entries.len().saturating_sub(ENTRIES_CAP);
        for (_, path) in &entries[..surplus] {
            std::fs::remove_file(path)?;
        }
        Ok(())
    }
}
