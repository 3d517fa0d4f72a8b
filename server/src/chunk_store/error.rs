//! What can go wrong with a chunk store, in words that hold no credential.

use std::time::Duration;

use crate::problem::Problem;

/// Longest reason that is told, characters.
const REASON_CHARS: usize = 400;

/// A call to a chunk store that came to nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// No answer, with all retries.
    #[error("{action} {url}: no answer within {limit:?}")]
    Timeout {
        /// `put`, `get`, `remove`.
        action: &'static str,
        /// Of the object.
        url: String,
        /// The limit.
        limit: Duration,
    },
    /// The store does not let this server do it: nothing that trying again would change.
    #[error("{action} {url}: refused: {reason}")]
    Refused {
        /// `put`, `get`, `remove`.
        action: &'static str,
        /// Of the object.
        url: String,
        /// As far as it may be told.
        reason: String,
    },
    /// Anything else.
    #[error("{action} {url}: {reason}")]
    Failed {
        /// `put`, `get`, `remove`.
        action: &'static str,
        /// Of the object.
        url: String,
        /// As far as it may be told.
        reason: String,
    },
    /// The object lies in a store that this server was not started with.
    #[error("{url} is not in {here}: start the server with the --chunk-store that holds it")]
    Elsewhere {
        /// Of the object.
        url: String,
        /// This server's store.
        here: String,
    },
    /// The object is gone although a row refers to it.
    #[error("{url} is gone: something else than this service has removed it")]
    Gone {
        /// Of the object.
        url: String,
    },
}

impl StoreError {
    pub(crate) fn new(action: &'static str, url: &str, error: &object_store::Error) -> Self {
        use object_store::Error as E;
        let (url, reason) = (url.to_owned(), told(&error.to_string()));
        match error {
            E::PermissionDenied { .. } | E::Unauthenticated { .. } => {
                Self::Refused { action, url, reason }
            }
            _ => Self::Failed { action, url, reason },
        }
    }

    /// Whether the same call may work later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Timeout { .. } | Self::Failed { .. } => true,
            Self::Refused { .. } | Self::Elsewhere { .. } | Self::Gone { .. } => false,
        }
    }
}

/// The caller learns only whether to try again: names of buckets are nobody's business. The log gets the rest.
impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        if error.is_retryable() {
            tracing::warn!(%error, "the chunk store failed");
            return Self::Unavailable("the chunk store does not answer just now".to_owned());
        }
        Self::internal(error)
    }
}

/// The text without what a store's answer repeats of the request, which may hold a signature, and without queries of URLs,
/// which may hold a key. Of the answer's body only its code is left.
fn told(text: &str) -> String {
    let code = text.split_once("<Code>").and_then(|(_, rest)| rest.split_once("</Code>"));
    let head = text.split(['<', '{']).next().unwrap_or_default();
    let words = head.split_whitespace().map(|word| match word.split_once('?') {
        Some((path, _)) => format!("{path}?…"),
        None => word.to_owned(),
    });
    let mut told = words.collect::<Vec<_>>().join(" ");
    if let Some((code, _)) = code {
        told = format!("{told} {code}");
    }
    told.chars().take(REASON_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_repeats_the_request_is_cut_to_its_code() {
        let text = "Error performing PUT https://host/bucket/key?sig=secret in 3ms - Server returned non-2xx status code: \
            403 Forbidden: <?xml version=\"1.0\"?><Error><Code>SignatureDoesNotMatch</Code>\
            <AWSAccessKeyId>secret</AWSAccessKeyId></Error>";
        let told = told(text);
        assert!(!told.contains("secret"), "{told}");
        assert!(
            told.contains("https://host/bucket/key?…") && told.contains("403 Forbidden"),
            "{told}"
        );
        assert!(told.ends_with("SignatureDoesNotMatch"), "{told}");
        assert!(!super::told("token: {\"access_token\":\"secret\"}").contains("secret"));
    }
}
