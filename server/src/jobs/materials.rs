//! Components and datasets as files on this machine, for the check at submit. A cache: everything is in the database.
//!
//! Content-addressed, so what one project made is the same bytes for another; that the caller may use a digest is
//! found out from the project's own rows first.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use camino::{Utf8Path, Utf8PathBuf};
use lockstep_api::{DatasetView, Digest, FileManifest, ProjectId};
use sha2::{Digest as _, Sha256};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use crate::app::App;
use crate::data;
use crate::problem::Problem;

/// When the cache holds more than this it is emptied, between two checks. Also the most that one job's data may be.
pub(crate) const CACHE_BYTES: u64 = 16 << 30;

/// The cache.
#[derive(Debug)]
pub struct Materials {
    root: Utf8PathBuf,
    /// What was put in since the folder was last empty, as far as this process knows.
    bytes: AtomicU64,
    /// Read by a check that uses the files, written by whoever empties the folder.
    in_use: Arc<RwLock<()>>,
}

impl Materials {
    /// In a folder that need not exist yet.
    pub fn new(root: Utf8PathBuf) -> Self {
        // What an earlier process left counts as well; a folder that cannot be read counts as empty.
        let bytes = folder_bytes(&root.join("files"));
        // And what it was in the middle of making is of no use. If it cannot be removed it does not matter either.
        drop(std::fs::remove_dir_all(root.join("new")));
        Self { root, bytes: AtomicU64::new(bytes), in_use: Arc::default() }
    }

    /// Keeps the files in place while the guard lives. Empties the folder first if it has grown too large and nobody
    /// uses it.
    pub(crate) async fn enter(&self) -> Result<OwnedRwLockReadGuard<()>, Problem> {
        if CACHE_BYTES < self.bytes.load(Ordering::Relaxed)
            && let Ok(_alone) = self.in_use.try_write()
        {
            for part in ["files", "datasets", "compiled"] {
                remove_folder(&self.root.join(part)).await.map_err(Problem::internal)?;
            }
            self.bytes.store(0, Ordering::Relaxed);
        }
        for part in ["files", "datasets", "compiled", "new"] {
            tokio::fs::create_dir_all(self.root.join(part)).await.map_err(Problem::internal)?;
        }
        Ok(Arc::clone(&self.in_use).read_owned().await)
    }

    /// Folder for compiled components.
    pub(crate) fn compiled(&self) -> Utf8PathBuf {
        self.root.join("compiled")
    }

    /// Path of a file of the project.
    pub(crate) async fn file(
        &self,
        app: &App,
        project: ProjectId,
        file: &FileManifest,
    ) -> Result<Utf8PathBuf, Problem> {
        let path = self.root.join("files").join(file.digest.hex());
        let there =
            tokio::fs::metadata(&path).await.ok().and_then(|it| i64::try_from(it.len()).ok());
        if there != Some(file.size_bytes) {
            self.write(app, project, file, &path).await?;
            self.bytes.fetch_add(file.size_bytes.unsigned_abs(), Ordering::Relaxed);
        }
        Ok(path)
    }

    async fn write(
        &self,
        app: &App,
        project: ProjectId,
        file: &FileManifest,
        path: &Utf8Path,
    ) -> Result<(), Problem> {
        let new =
            tempfile::NamedTempFile::new_in(self.root.join("new")).map_err(Problem::internal)?;
        let mut out = tokio::fs::File::from_std(new.reopen().map_err(Problem::internal)?);
        let mut whole = Sha256::new();
        for digest in &file.chunks {
            let chunk = data::chunks::read(app, project, digest)
                .await?
                .ok_or_else(|| Problem::internal(format!("chunk {digest} of a file is gone")))?;
            whole.update(&chunk);
            out.write_all(&chunk).await.map_err(Problem::internal)?;
        }
        let got = Digest::from_sha256(whole.finalize().into());
        if got != file.digest {
            return Err(Problem::internal(format!(
                "file {} holds other bytes: {got}",
                file.digest
            )));
        }
        // Before it gets its name: after a crash a name never stands for half a file.
        out.sync_data().await.map_err(Problem::internal)?;
        new.persist(path).map_err(|error| Problem::internal(error.error))?;
        Ok(())
    }

    /// Path of a folder that holds a dataset's files under their paths. The paths were checked when it was registered.
    pub(crate) async fn dataset(
        &self,
        app: &App,
        project: ProjectId,
        dataset: &DatasetView,
    ) -> Result<Utf8PathBuf, Problem> {
        let path = self.root.join("datasets").join(dataset.digest.hex());
        if tokio::fs::try_exists(&path).await.map_err(Problem::internal)? {
            return Ok(path);
        }
        let new = tempfile::TempDir::new_in(self.root.join("new")).map_err(Problem::internal)?;
        let folder = Utf8Path::from_path(new.path())
            .ok_or_else(|| Problem::internal("the data folder is not UTF-8"))?;
        for entry in &dataset.files {
            let mut tx = app.db.project(project).await?;
            let manifest = data::store::find_file(&mut tx, project, &entry.file).await?;
            tx.rollback().await?;
            let manifest = manifest
                .ok_or_else(|| Problem::internal(format!("file {} is gone", entry.file)))?;
            let source = self.file(app, project, &manifest).await?;
            let target = folder.join(&entry.path);
            if let Some(parent) = target.parent() {
                tokio::fs::create_dir_all(parent).await.map_err(Problem::internal)?;
            }
            tokio::fs::hard_link(&source, &target).await.map_err(Problem::internal)?;
        }
        match tokio::fs::rename(folder, &path).await {
            Ok(()) => {}
            // Another check was quicker; its folder is the same.
            Err(_) if tokio::fs::try_exists(&path).await.unwrap_or(false) => {}
            Err(error) => return Err(Problem::internal(error)),
        }
        Ok(path)
    }
}

async fn remove_folder(path: &Utf8Path) -> std::io::Result<()> {
    match tokio::fs::remove_dir_all(path).await {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn folder_bytes(folder: &Utf8Path) -> u64 {
    let entries = folder.read_dir_utf8().into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.metadata().ok()).map(|metadata| metadata.len()).sum()
}
