//! Where the bytes of new chunks go: into rows of the database, or into an object store. Which chunks there are, and what
//! refers to them, the database knows in either case.

mod connector;
mod error;
mod url;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockstep_api::{CHUNK_BYTES, Digest, ProjectId};
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{BackoffConfig, ObjectStore, ObjectStoreExt as _, PutPayload, RetryConfig};

use self::connector::Connector;
pub use self::error::StoreError;
pub use self::url::{Bucket, ChunkStoreUrl, ChunkStoreUrlError};

/// Longest call, retries included.
pub(crate) const CALL_TIME: Duration = Duration::from_secs(60);
/// No further try is begun after so long; the last one has 20 seconds.
const RETRY_TIME: Duration = Duration::from_secs(30);
/// Tries after the first one.
const RETRIES: usize = 6;
/// Ceiling of the wait between two tries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Where the bytes of new chunks go.
#[derive(Debug, Clone)]
pub enum ChunkStore {
    /// Into rows.
    Postgres,
    /// Into objects.
    Objects(Objects),
}

/// An object store.
#[derive(Debug, Clone)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// What keys begin with.
    prefix: Path,
    /// What the objects' URLs begin with.
    url: String,
}

/// A store that cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("opening {url}: {reason}")]
pub struct OpenError {
    url: String,
    reason: String,
}

impl ChunkStore {
    /// Opens a store; nothing is sent yet.
    ///
    /// `environment`: the provider's own variables are picked out by their names (`AWS_…`, `GOOGLE_…`, `AZURE_…`).
    ///
    /// # Errors
    /// A setting that does not fit, a folder that cannot be made.
    pub fn open(
        url: &ChunkStoreUrl,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, OpenError> {
        let name = url.to_string();
        let failed = |error: &dyn std::error::Error| OpenError {
            url: name.clone(),
            reason: error.to_string(),
        };
        let settings =
            environment.into_iter().map(|(key, value)| (key.to_ascii_lowercase(), value));
        let (store, prefix) = match url {
            ChunkStoreUrl::Postgres => return Ok(Self::Postgres),
            ChunkStoreUrl::File(folder) => {
                std::fs::create_dir_all(folder).map_err(|error| failed(&error))?;
                (folder_store(folder.as_ref()), "")
            }
            ChunkStoreUrl::S3(Bucket { name, prefix }) => {
                (s3_store(name, settings), prefix.as_str())
            }
            ChunkStoreUrl::Gcs(Bucket { name, prefix }) => {
                (gcs_store(name, settings), prefix.as_str())
            }
            ChunkStoreUrl::Azure(Bucket { name, prefix }) => {
                (azure_store(name, settings), prefix.as_str())
            }
        };
        let store = store.map_err(|error| failed(&error))?;
        let prefix = Path::parse(prefix).map_err(|error| failed(&error))?;
        Ok(Self::Objects(Objects { store, prefix, url: name }))
    }

    /// Puts, gets and removes one small object, so that what does not fit is told at the start.
    ///
    /// # Errors
    /// What the store said.
    pub async fn probe(&self, nonce: [u8; 8]) -> Result<(), StoreError> {
        let Self::Objects(objects) = self else { return Ok(()) };
        let url = format!("{}/probe-{}", objects.url, hex(&nonce));
        let bytes = Bytes::from_static(b"lockstep");
        objects.put(&url, bytes.clone()).await?;
        let found = objects.get(&url).await?;
        objects.remove(&url).await?;
        if found == bytes {
            return Ok(());
        }
        let reason = "it holds other bytes than were put".to_owned();
        Err(StoreError::Failed { action: "get", url, reason })
    }

    /// The bytes of an object, wherever chunks go now.
    pub(crate) async fn get(&self, url: &str) -> Result<Bytes, StoreError> {
        match self {
            Self::Objects(objects) => objects.get(url).await,
            Self::Postgres => {
                let (url, here) = (url.to_owned(), ChunkStoreUrl::Postgres.to_string());
                Err(StoreError::Elsewhere { url, here })
            }
        }
    }
}

type Opened = object_store::Result<Arc<dyn ObjectStore>>;

fn folder_store(folder: &std::path::Path) -> Opened {
    // A chunk is told to be there once it would survive a loss of power.
    Ok(Arc::new(LocalFileSystem::new_with_prefix(folder)?.with_fsync(true)))
}

/// Those of the provider's own variables that mean something here.
macro_rules! configured {
    ($builder:expr, $prefix:literal, $settings:expr) => {
        $settings.filter(|(key, _)| key.starts_with($prefix)).fold(
            $builder,
            |builder, (key, value)| match key.parse() {
                Ok(key) => builder.with_config(key, value),
                Err(_) => builder,
            },
        )
    };
}

fn s3_store(bucket: &str, settings: impl Iterator<Item = (String, String)>) -> Opened {
    let builder = configured!(AmazonS3Builder::new(), "aws_", settings);
    let builder = builder.with_bucket_name(bucket).with_retry(retry());
    Ok(Arc::new(builder.with_http_connector(Connector).build()?))
}

fn gcs_store(bucket: &str, settings: impl Iterator<Item = (String, String)>) -> Opened {
    let builder = configured!(GoogleCloudStorageBuilder::new(), "google_", settings);
    let builder = builder.with_bucket_name(bucket).with_retry(retry());
    Ok(Arc::new(builder.with_http_connector(Connector).build()?))
}

fn azure_store(container: &str, settings: impl Iterator<Item = (String, String)>) -> Opened {
    let builder = configured!(MicrosoftAzureBuilder::new(), "azure_", settings);
    let builder = builder.with_container_name(container).with_retry(retry());
    Ok(Arc::new(builder.with_http_connector(Connector).build()?))
}

fn retry() -> RetryConfig {
    let backoff = BackoffConfig { max_backoff: LONGEST_PAUSE, ..BackoffConfig::default() };
    RetryConfig { backoff, max_retries: RETRIES, retry_timeout: RETRY_TIME }
}

impl Objects {
    /// What the URLs of its objects begin with.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// A URL for an object that is about to be put. No two are the same: what was let go of is never written again, so
    /// removing it takes nothing from whoever puts the same bytes meanwhile.
    pub(crate) fn new_url(&self, project: ProjectId, digest: &Digest, nonce: [u8; 8]) -> String {
        format!("{}/{project}/{}-{}", self.url, digest.hex(), hex(&nonce))
    }

    /// Stores an object; whoever gets it afterwards gets all of it.
    pub(crate) async fn put(&self, url: &str, bytes: Bytes) -> Result<(), StoreError> {
        let path = self.path(url)?;
        let put = self.store.put(&path, PutPayload::from_bytes(bytes));
        limited("put", url, put)
            .await?
            .map(drop)
            .map_err(|error| StoreError::new("put", url, &error))
    }

    /// The bytes of an object.
    pub(crate) async fn get(&self, url: &str) -> Result<Bytes, StoreError> {
        let path = self.path(url)?;
        let get = async {
            let found = self.store.get(&path).await?;
            let size = found.meta.size;
            if (CHUNK_BYTES as u64) < size {
                let source = format!("it has {size} bytes, a chunk at most {CHUNK_BYTES}").into();
                return Err(object_store::Error::Generic { store: "chunk", source });
            }
            found.bytes().await
        };
        limited("get", url, get).await?.map_err(|error| match error {
            object_store::Error::NotFound { .. } => StoreError::Gone { url: url.to_owned() },
            error => StoreError::new("get", url, &error),
        })
    }

    /// Removes an object. One that is not there is no error.
    pub(crate) async fn remove(&self, url: &str) -> Result<(), StoreError> {
        let path = self.path(url)?;
        match limited("remove", url, self.store.delete(&path)).await? {
            Ok(()) | Err(object_store::Error::NotFound { .. }) => Ok(()),
            Err(error) => Err(StoreError::new("remove", url, &error)),
        }
    }

    fn path(&self, url: &str) -> Result<Path, StoreError> {
        let key = url.strip_prefix(&self.url).and_then(|rest| rest.strip_prefix('/'));
        let Some(key) = key else {
            return Err(StoreError::Elsewhere { url: url.to_owned(), here: self.url.clone() });
        };
        let key = key.split('/').filter(|part| !part.is_empty());
        Ok(Path::from_iter(self.prefix.parts().chain(key.map(Into::into))))
    }
}

async fn limited<T>(
    action: &'static str,
    url: &str,
    call: impl Future<Output = T>,
) -> Result<T, StoreError> {
    tokio::time::timeout(CALL_TIME, call).await.map_err(|_| StoreError::Timeout {
        action,
        url: url.to_owned(),
        limit: CALL_TIME,
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
