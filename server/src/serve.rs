//! `serve`: migrate, listen, answer until told to stop.

use std::io::Write as _;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use camino::{Utf8Path, Utf8PathBuf};
use lockstep_service::{Clock, Shutdown};
use tokio::net::TcpListener;

use crate::app::{App, Random};
use crate::chunk_store::ChunkStore;
use crate::config::ServeArgs;
use crate::db::Db;
use crate::router::router;

/// How long requests may go on after the first signal.
const GRACE: Duration = Duration::from_secs(10);
/// How long connections to the database may take to come back after that.
const CLOSE_TIME: Duration = Duration::from_secs(2);

/// Serves until a signal comes.
///
/// # Errors
/// Settings that do not fit, a database that does not answer, an address that is taken.
pub async fn serve(args: ServeArgs) -> anyhow::Result<()> {
    let settings = args.settings(own_folder()).map_err(anyhow::Error::msg)?;
    ensure!(
        settings.rank_binary.is_file(),
        "--rank-binary: there is no program {}",
        settings.rank_binary
    );
    let chunk_store = args.chunk_store_url().map_err(anyhow::Error::msg)?;
    let chunks = ChunkStore::open(&chunk_store, environment()).context("--chunk-store")?;
    std::fs::create_dir_all(&settings.data_dir)
        .with_context(|| format!("making {}", settings.data_dir))?;
    Db::migrate(&args.database_url).await.context("migrating the database")?;
    let db = Db::connect(&args.database_url).await.context("connecting to the database")?;
    let shutdown = Shutdown::new();
    let random = Random::system();
    chunks.probe(random.bytes()).await.with_context(|| format!("--chunk-store {chunk_store}"))?;
    let app = App::new(db.clone(), Clock::system(), random, shutdown.clone(), settings);
    let app = app.with_chunks(chunks);

    crate::reconcile::spawn(&app);

    let listener = TcpListener::bind(args.listen)
        .await
        .with_context(|| format!("listening on {}", args.listen))?;
    let address = listener.local_addr()?;
    let soft = shutdown.soft().clone();
    let server = axum::serve(listener, router(app)).with_graceful_shutdown(soft.cancelled_owned());
    let stopper = shutdown.clone();
    shutdown.spawn(async move {
        if let Err(error) = server.await {
            tracing::error!(%error, "the listener failed");
        }
        stopper.request();
    });
    if let Some(path) = &args.port_file {
        write_whole(path, &format!("http://{address}\n"))
            .with_context(|| format!("writing {path}"))?;
    }
    tracing::info!(%address, "server is ready");
    let stage = shutdown.run_until_stopped(GRACE).await.context("waiting for signals")?;
    if tokio::time::timeout(CLOSE_TIME, db.close()).await.is_err() {
        tracing::warn!("some requests still hold database connections");
    }
    tracing::info!(?stage, "server has stopped");
    Ok(())
}

fn own_folder() -> Option<Utf8PathBuf> {
    let program = Utf8PathBuf::from_path_buf(std::env::current_exe().ok()?).ok()?;
    program.parent().map(Utf8Path::to_path_buf)
}

/// The variables that are text: object stores find their credentials and settings among them.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os()
        .filter_map(|(key, value)| Some((key.into_string().ok()?, value.into_string().ok()?)))
}

/// A reader never sees half of it.
fn write_whole(path: &Utf8Path, text: &str) -> std::io::Result<()> {
    let folder =
        path.parent().filter(|folder| !folder.as_str().is_empty()).unwrap_or(Utf8Path::new("."));
    let mut file = tempfile::NamedTempFile::new_in(folder)?;
    file.write_all(text.as_bytes())?;
    file.persist(path)?;
    Ok(())
}
