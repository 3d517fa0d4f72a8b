//! What a handler and a reconciler may reach: database, clock, randomness, shutdown, wake-ups, settings.

use std::sync::{Arc, Mutex, PoisonError};

use lockstep_api::JobId;
use lockstep_service::{Clock, Shutdown};
use rand::rngs::StdRng;
use rand::{RngCore as _, SeedableRng as _};
use tokio::sync::{Semaphore, broadcast, watch};

use crate::chunk_store::ChunkStore;
use crate::config::Settings;
use crate::db::Db;
use crate::jobs::materials::Materials;

/// How many job submissions are checked at once. Each is a child process that compiles components.
pub const CONCURRENT_CHECKS: usize = 2;
/// How many event streams one server keeps open.
pub const OPEN_STREAMS: usize = 1000;
/// How many wake-ups of event streams may wait to be read; a reader that lags behind simply looks at the rows.
const EVENT_BACKLOG: usize = 1024;

/// The service, as seen from inside. Clones are the same.
#[derive(Debug, Clone)]
pub struct App {
    /// The database.
    pub db: Db,
    /// The time.
    pub clock: Clock,
    /// Ids and secrets.
    pub random: Random,
    /// The two stages of the end.
    pub shutdown: Shutdown,
    /// Hints that something changed, beside polling.
    pub wakeup: Wakeup,
    /// Settings.
    pub settings: Arc<Settings>,
    /// One permit for each check that may run.
    pub checks: Arc<Semaphore>,
    /// One permit for each event stream that may be open.
    pub streams: Arc<Semaphore>,
    /// Components and datasets on this machine.
    pub materials: Arc<Materials>,
    /// Where the bytes of new chunks go.
    pub chunks: ChunkStore,
}

impl App {
    /// Puts the parts together. Chunks go into the database.
    pub fn new(
        db: Db,
        clock: Clock,
        random: Random,
        shutdown: Shutdown,
        settings: Settings,
    ) -> Self {
        Self {
            db,
            clock,
            random,
            shutdown,
            wakeup: Wakeup::new(),
            checks: Arc::new(Semaphore::new(CONCURRENT_CHECKS)),
            streams: Arc::new(Semaphore::new(OPEN_STREAMS)),
            materials: Arc::new(Materials::new(settings.data_dir.join("check"))),
            settings: Arc::new(settings),
            chunks: ChunkStore::Postgres,
        }
    }

    /// With chunks somewhere else.
    #[must_use]
    pub fn with_chunks(self, chunks: ChunkStore) -> Self {
        Self { chunks, ..self }
    }

    /// A new id: `app.new_id(JobId::new)`.
    pub fn new_id<T>(&self, mint: fn(u64, [u8; 10]) -> T) -> T {
        mint(self.clock.unix_ms(), self.random.bytes())
    }
}

/// A source of random bytes that is fit for secrets (ChaCha, seeded by the system).
#[derive(Clone)]
pub struct Random(Arc<Mutex<StdRng>>);

impl Random {
    /// Seeded by the operating system.
    pub fn system() -> Self {
        Self(Arc::new(Mutex::new(StdRng::from_os_rng())))
    }

    /// The next bytes.
    pub fn bytes<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        // A panic elsewhere cannot leave the generator half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).fill_bytes(&mut bytes);
        bytes
    }
}

impl std::fmt::Debug for Random {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Random")
    }
}

/// Wakes those who wait, within this process. A hint only: the truth is in the rows, and everyone who waits also
/// polls, because another replica may have made the change.
#[derive(Debug, Clone)]
pub struct Wakeup {
    jobs: watch::Sender<()>,
    assignments: watch::Sender<()>,
    events: broadcast::Sender<JobId>,
}

impl Wakeup {
    fn new() -> Self {
        Self {
            jobs: watch::Sender::new(()),
            assignments: watch::Sender::new(()),
            events: broadcast::Sender::new(EVENT_BACKLOG),
        }
    }

    /// A job, an attempt or a node changed: reconcilers should look.
    pub fn jobs_changed(&self) {
        self.jobs.send_replace(());
    }

    /// Resolves through `changed()` after the next [`Self::jobs_changed`].
    pub fn jobs(&self) -> watch::Receiver<()> {
        self.jobs.subscribe()
    }

    /// Some node's set of assignments changed: parked polls should look.
    pub fn assignments_changed(&self) {
        self.assignments.send_replace(());
    }

    /// Resolves through `changed()` after the next [`Self::assignments_changed`].
    pub fn assignments(&self) -> watch::Receiver<()> {
        self.assignments.subscribe()
    }

    /// Rows were appended to this job's events (call after the commit).
    pub fn job_event(&self, job: JobId) {
        // No one listening is no error.
        drop(self.events.send(job));
    }

    /// The jobs that got events. Lagging is a wake-up too.
    pub fn job_events(&self) -> broadcast::Receiver<JobId> {
        self.events.subscribe()
    }
}
