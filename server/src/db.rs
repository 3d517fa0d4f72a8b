//! The pool, the migrator, and the two ways into the database: as a project, or as the system.

use std::str::FromStr as _;
use std::time::Duration;

use lockstep_api::ProjectId;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, PgPool, Postgres, Transaction};

/// Connections of one server.
const CONNECTIONS: u32 = 16;
/// Longest wait for one of them.
const ACQUIRE_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection is replaced after so long, so that server-side memory and plans do not grow for ever.
const CONNECTION_LIFETIME: Duration = Duration::from_secs(30 * 60);
/// Guard rails of every session but the migrator's.
const SESSION_LIMITS: [(&str, &str); 3] = [
    ("statement_timeout", "15s"),
    ("lock_timeout", "3s"),
    ("idle_in_transaction_session_timeout", "10s"),
];

static MIGRATOR: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// A transaction that sees one project or everything, depending on how it was begun.
pub type Tx = Transaction<'static, Postgres>;

/// The database. Clones share the pool.
#[derive(Debug, Clone)]
pub struct Db {
    pool: PgPool,
}

impl Db {
    /// Opens the pool.
    ///
    /// # Errors
    /// A URL that does not parse, a server that does not answer.
    pub async fn connect(url: &str) -> sqlx::Result<Self> {
        let options = PgConnectOptions::from_str(url)?
            .application_name("lockstep-server")
            .options(SESSION_LIMITS);
        let pool = PgPoolOptions::new()
            .max_connections(CONNECTIONS)
            .acquire_timeout(ACQUIRE_TIMEOUT)
            .max_lifetime(CONNECTION_LIFETIME)
            .test_before_acquire(false)
            .connect_with(options)
            .await?;
        Ok(Self { pool })
    }

    /// Over a pool that someone else made (tests).
    pub fn from_pool(pool: PgPool) -> Self {
        Self { pool }
    }

    /// Brings the schema up to date, under a lock and without a time limit. Safe to call from several servers at once.
    ///
    /// # Errors
    /// A server that does not answer, a migration that fails or was edited.
    pub async fn migrate(url: &str) -> Result<(), sqlx::migrate::MigrateError> {
        let mut connection = PgConnectOptions::from_str(url)?.connect().await?;
        MIGRATOR.run(&mut connection).await
    }

    /// Begins a transaction that sees the rows of `project` alone.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn project(&self, project: ProjectId) -> sqlx::Result<Tx> {
        // A UUID's text has hex digits and dashes only. One round trip; the settings end with the transaction, so
        // they cannot leak to the next user of the connection.
        self.pool
            .begin_with(AssertSqlSafe(format!(
                "BEGIN; SET LOCAL ROLE lockstep_app; SET LOCAL lockstep.project = '{project}'"
            )))
            .await
    }

    /// Likewise, for reading only, and everything as it was at one moment: for views put together by several statements.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn snapshot(&self, project: ProjectId) -> sqlx::Result<Tx> {
        self.pool
            .begin_with(AssertSqlSafe(format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL ROLE lockstep_app; \
                 SET LOCAL lockstep.project = '{project}'"
            )))
            .await
    }

    /// Begins a transaction that sees every project: for the scheduler, reconcilers, agents' side, and to find out who
    /// a token belongs to.
    ///
    /// # Errors
    /// A server that does not answer.
    pub async fn system(&self) -> sqlx::Result<Tx> {
        self.pool.begin_with("BEGIN; SET LOCAL ROLE lockstep_system").await
    }

    /// Whether the database answers.
    ///
    /// # Errors
    /// When it does not.
    pub async fn ping(&self) -> sqlx::Result<()> {
        sqlx::query("SELECT 1").execute(&self.pool).await.map(drop)
    }

    /// Closes the pool; waits for connections in use.
    pub async fn close(&self) {
        self.pool.close().await;
    }
}
