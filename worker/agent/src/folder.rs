//! A folder that blocking work fills, and that is removed only once none of this work is left.
//!
//! Blocking work goes on, or still waits for a thread, when the future that asked for it has been dropped. Were the
//! folder removed meanwhile, the work could make it anew afterwards, and nobody would remove it again.

use std::io;

use camino::{Utf8Path, Utf8PathBuf};
use tokio_util::task::TaskTracker;

use crate::files::remove_folder;
use crate::node::blocking;

/// A folder, and the work on what is in it.
#[derive(Debug)]
pub(crate) struct WorkFolder {
    path: Utf8PathBuf,
    work: TaskTracker,
}

impl WorkFolder {
    /// Makes nothing yet.
    pub(crate) fn new(path: Utf8PathBuf) -> Self {
        let work = TaskTracker::new();
        // A closed tracker still counts; it is only then that waiting for it ends when it counts none.
        work.close();
        Self { path, work }
    }

    pub(crate) fn path(&self) -> &Utf8Path {
        &self.path
    }

    /// Runs blocking work that makes or changes something in the folder.
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> T {
        let counted = self.work.token();
        blocking(move || {
            let _counted = counted;
            work()
        })
        .await
    }

    /// Removes the folder after all work on it, wanted or not, has ended. One that is not there is fine.
    ///
    /// The wait has no limit of its own: it is for a few calls to the disk that the removal needs as well.
    pub(crate) async fn remove(&self) -> io::Result<()> {
        self.work.wait().await;
        let path = self.path.clone();
        self.blocking(move || remove_folder(&path)).await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;

    use futures::poll;

    use super::*;

    #[test]
    fn work_that_nobody_waits_for_any_more_ends_before_the_folder_goes() {
        // One thread for the work, and one on which a removal that does not wait would come first.
        let runtime =
            tokio::runtime::Builder::new_current_thread().max_blocking_threads(2).build().unwrap();
        runtime.block_on(async {
            let base = tempfile::tempdir().unwrap();
            let path = Utf8PathBuf::try_from(base.path().join("attempt")).unwrap();
            std::fs::create_dir(&path).unwrap();
            let folder = WorkFolder::new(path.clone());
            let (begin, begun) = mpsc::channel();
            let (release, released) = mpsc::channel();
            {
                let made = path.clone();
                let mut work = pin!(folder.blocking(move || {
                    begin.send(()).unwrap();
                    released.recv().unwrap();
                    std::fs::create_dir_all(made.join("train")).unwrap();
                }));
                assert!(poll!(&mut work).is_pending());
                begun.recv().unwrap();
            }
            let mut removal = pin!(folder.remove());
            assert!(poll!(&mut removal).is_pending());
            // The free thread takes what is queued in order: a removal before this.
            blocking(|| ()).await;
            assert!(path.exists(), "removed while the work was under way");
            release.send(()).unwrap();
            removal.await.unwrap();
            assert!(!path.exists());
        });
    }
}
