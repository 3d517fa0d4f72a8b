//! What can go wrong between a caller and the server.

use camino::Utf8PathBuf;
use lockstep_api::{Digest, ProblemBody, ProblemCode};
use reqwest::StatusCode;

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The server answered with a problem.
    #[error("{}", describe(.0))]
    Problem(Box<ProblemBody>),
    /// No answer, or one that broke off.
    #[error("cannot reach {url}")]
    Unreachable {
        /// Where to.
        url: String,
        /// Why.
        source: reqwest::Error,
    },
    /// An answer that is neither a result nor a problem: something else listens there, or a proxy speaks.
    #[error("{url} answered with status {status} and not as a Lockstep server would: {body:?}")]
    UnexpectedAnswer {
        /// Where to.
        url: String,
        /// Status.
        status: StatusCode,
        /// The beginning of the body.
        body: String,
    },
    /// A result whose body does not fit.
    #[error("the answer of {url} does not have the expected form")]
    Decode {
        /// Where to.
        url: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A stream of events was quiet for longer than the server's own keep-alive, or ended again and again.
    #[error("the event stream of {url} broke off")]
    StreamBroken {
        /// Where to.
        url: String,
    },
    /// A server URL that cannot be used.
    #[error("server URL {url:?}: {reason}")]
    InvalidUrl {
        /// As given.
        url: String,
        /// What was expected.
        reason: String,
    },
    /// A token that cannot be a header.
    #[error("the token holds characters that no token has")]
    InvalidToken,
    /// The HTTP machinery did not start.
    #[error("cannot set up the HTTP client")]
    Setup(#[source] reqwest::Error),
    /// A local file or folder.
    #[error("cannot {doing} {path}")]
    File {
        /// `read`, `write`, …
        doing: &'static str,
        /// Which.
        path: Utf8PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A local file or folder that cannot be uploaded as it is.
    #[error("{path}: {reason}")]
    Unsuitable {
        /// Which.
        path: Utf8PathBuf,
        /// What was expected.
        reason: String,
    },
    /// Bytes that do not have the digest they were asked by.
    #[error("{what} has digest {got}, expected {expected}")]
    DigestMismatch {
        /// Chunk or file.
        what: String,
        /// As asked.
        expected: Digest,
        /// As it came.
        got: Digest,
    },
}

impl ClientError {
    /// Whether the same call may succeed later.
    pub fn is_retryable(&self) -> bool {
        match self {
            Self::Problem(problem) => problem.retryable,
            Self::Unreachable { .. } | Self::StreamBroken { .. } => true,
            Self::UnexpectedAnswer { status, .. } => {
                matches!(status.as_u16(), 408 | 429 | 502..=504)
            }
            Self::Decode { .. }
            | Self::InvalidUrl { .. }
            | Self::InvalidToken
            | Self::Setup(_)
            | Self::File { .. }
            | Self::Unsuitable { .. }
            | Self::DigestMismatch { .. } => false,
        }
    }

    /// The problem's code, if the server answered with one.
    pub fn code(&self) -> Option<ProblemCode> {
        match self {
            Self::Problem(problem) => Some(problem.code),
            _ => None,
        }
    }

    pub(crate) fn file(
        doing: &'static str,
        path: &camino::Utf8Path,
    ) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { doing, path, source }
    }
}

/// Detail, then one line for each field at fault.
fn describe(problem: &ProblemBody) -> String {
    let mut text =
        if problem.detail.is_empty() { problem.title.clone() } else { problem.detail.clone() };
    for error in problem.errors.iter().map(ToString::to_string) {
        // A detail that already says it is not repeated.
        if !text.contains(&error) {
            text.push_str("\n  ");
            text.push_str(&error);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use lockstep_api::FieldError;

    use super::*;

    #[test]
    fn a_problem_reads_as_its_detail_and_fields_and_says_whether_to_retry() {
        let mut body = ProblemBody::new(ProblemCode::InvalidRequest, "the job cannot be read");
        body.errors.push(FieldError::new("train.epochs", "expected 1 or more, got 0"));
        let error = ClientError::Problem(Box::new(body));
        assert_eq!(
            error.to_string(),
            "the job cannot be read\n  train.epochs: expected 1 or more, got 0"
        );
        assert!(!error.is_retryable());

        let mut body = ProblemBody::new(ProblemCode::JobRefused, "model.inputs: expected 64");
        body.errors.push(FieldError::new("model.inputs", "expected 64"));
        let error = ClientError::Problem(Box::new(body));
        assert_eq!(error.to_string(), "model.inputs: expected 64", "said once");
        let busy = ProblemBody::new(ProblemCode::Unavailable, "starting");
        assert!(ClientError::Problem(Box::new(busy)).is_retryable());
    }
}
