//! Where chunks are stored, as `--chunk-store` names it.

use std::fmt;
use std::str::FromStr;

use camino::Utf8PathBuf;

/// Longest URL, bytes.
const MAX_URL_BYTES: usize = 1024;

/// Where chunks are stored. Holds no credential: those are found where each provider's own programs find them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ChunkStoreUrl {
    /// In the database, as rows.
    #[default]
    Postgres,
    /// In a folder that every replica of the server sees.
    File(Utf8PathBuf),
    /// In a bucket that speaks S3.
    S3(Bucket),
    /// In a bucket of Google Cloud Storage.
    Gcs(Bucket),
    /// In a container of Azure Blob Storage.
    Azure(Bucket),
}

/// A bucket or container, and what the keys in it begin with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Bucket {
    /// Its name.
    pub name: String,
    /// Words with slashes between, or nothing.
    pub prefix: String,
}

/// Text that names no chunk store. It is not repeated here: it might hold a credential.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChunkStoreUrlError {
    /// Another beginning, or a path that is not absolute.
    #[error(
        "expected `postgres:`, `file:///folder`, `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`"
    )]
    Form,
    /// User, query or fragment.
    #[error(
        "expected no `@`, `?`, `#` or `%`: credentials and settings come from the provider's own environment variables"
    )]
    Extras,
    /// The bucket's name or the prefix.
    #[error("expected bucket and prefix of letters, digits, `.`, `_`, `-`, with `/` between words")]
    Name,
    /// More than 1024 bytes.
    #[error("expected at most {MAX_URL_BYTES} bytes")]
    Long,
}

impl FromStr for ChunkStoreUrl {
    type Err = ChunkStoreUrlError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if MAX_URL_BYTES < text.len() {
            return Err(ChunkStoreUrlError::Long);
        }
        if text == "postgres:" {
            return Ok(Self::Postgres);
        }
        let (scheme, rest) = text.split_once("://").ok_or(ChunkStoreUrlError::Form)?;
        if rest.contains(['@', '?', '#', '%']) {
            return Err(ChunkStoreUrlError::Extras);
        }
        match scheme {
            "file" if rest.starts_with('/') && !rest.contains(char::is_control) => {
                let folder = rest.trim_end_matches('/');
                Ok(Self::File(if folder.is_empty() { "/" } else { folder }.into()))
            }
            "s3" => bucket(rest).map(Self::S3),
            "gs" => bucket(rest).map(Self::Gcs),
            "az" => bucket(rest).map(Self::Azure),
            _ => Err(ChunkStoreUrlError::Form),
        }
    }
}

fn bucket(rest: &str) -> Result<Bucket, ChunkStoreUrlError> {
    let (name, prefix) = rest.split_once('/').unwrap_or((rest, ""));
    let prefix = prefix.trim_end_matches('/');
    let is_word = |word: &str| {
        !matches!(word, "" | "." | "..")
            && word.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
    };
    if !is_word(name) || !(prefix.is_empty() || prefix.split('/').all(is_word)) {
        return Err(ChunkStoreUrlError::Name);
    }
    Ok(Bucket { name: name.to_owned(), prefix: prefix.to_owned() })
}

/// In one spelling, without a slash at the end: the objects' own URLs begin with it.
impl fmt::Display for ChunkStoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scheme, Bucket { name, prefix }) = match self {
            Self::Postgres => return f.write_str("postgres:"),
            Self::File(folder) => {
                return write!(f, "file://{}", folder.as_str().trim_end_matches('/'));
            }
            Self::S3(bucket) => ("s3", bucket),
            Self::Gcs(bucket) => ("gs", bucket),
            Self::Azure(bucket) => ("az", bucket),
        };
        write!(f, "{scheme}://{name}")?;
        if prefix.is_empty() { Ok(()) } else { write!(f, "/{prefix}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_has_one_spelling_and_reads_back_as_itself() {
        for (text, spelled) in [
            ("postgres:", "postgres:"),
            ("file:///var/lib/lockstep/chunks/", "file:///var/lib/lockstep/chunks"),
            ("s3://bucket", "s3://bucket"),
            ("s3://my.bucket-1/team/a/", "s3://my.bucket-1/team/a"),
            ("gs://bucket/x", "gs://bucket/x"),
            ("az://container/x", "az://container/x"),
        ] {
            let url: ChunkStoreUrl = text.parse().unwrap();
            assert_eq!(url.to_string(), spelled);
            assert_eq!(spelled.parse(), Ok(url));
        }
    }

    #[test]
    fn what_names_no_store_is_refused_without_being_repeated() {
        for (text, error) in [
            ("", ChunkStoreUrlError::Form),
            ("/var/chunks", ChunkStoreUrlError::Form),
            ("postgres://host/db", ChunkStoreUrlError::Form),
            ("file://relative", ChunkStoreUrlError::Form),
            ("http://host/x", ChunkStoreUrlError::Form),
            ("s3://key:secret@bucket", ChunkStoreUrlError::Extras),
            ("s3://bucket?secret=secret", ChunkStoreUrlError::Extras),
            ("s3://", ChunkStoreUrlError::Name),
            ("s3://bucket//x", ChunkStoreUrlError::Name),
            ("s3://bucket/../x", ChunkStoreUrlError::Name),
        ] {
            let found = text.parse::<ChunkStoreUrl>().unwrap_err();
            assert_eq!(found, error, "{text}");
            assert!(!found.to_string().contains("secret"), "{found}");
        }
        assert_eq!(
            format!("s3://{}", "x".repeat(1024)).parse::<ChunkStoreUrl>(),
            Err(ChunkStoreUrlError::Long)
        );
    }
}
