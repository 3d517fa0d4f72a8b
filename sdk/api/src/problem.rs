//! RFC 9457: the one shape of every error that leaves the server.

use serde::{Deserialize, Serialize};

use crate::FieldError;

/// The closed set of problems. Part of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The request could not be understood; `errors` names the fields.
    InvalidRequest,
    /// No token, or one that is unknown, expired or revoked.
    Unauthenticated,
    /// The token's role does not reach.
    Forbidden,
    /// No such thing, or not of this project.
    NotFound,
    /// The method does not fit the path.
    MethodNotAllowed,
    /// The thing's state does not allow it.
    Conflict,
    /// The same idempotency key came with another request.
    IdempotencyMismatch,
    /// The sender's lease was given away: stop the ranks.
    Fenced,
    /// The body is larger than the limit.
    TooLarge,
    /// The body's type is not supported.
    UnsupportedMediaType,
    /// The job was refused by the check at submit; `errors` says why.
    JobRefused,
    /// Not now; try again.
    Unavailable,
    /// A fault of the server's own.
    Internal,
}

impl ProblemCode {
    /// HTTP status.
    pub fn status(self) -> u16 {
        match self {
            Self::InvalidRequest => 400,
            Self::Unauthenticated => 401,
            Self::Forbidden => 403,
            Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Conflict | Self::Fenced => 409,
            Self::TooLarge => 413,
            Self::UnsupportedMediaType => 415,
            Self::JobRefused | Self::IdempotencyMismatch => 422,
            Self::Internal => 500,
            Self::Unavailable => 503,
        }
    }

    /// Short text for people.
    pub fn title(self) -> &'static str {
        match self {
            Self::InvalidRequest => "Invalid request",
            Self::Unauthenticated => "Not authenticated",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "Method not allowed",
            Self::Conflict => "Conflict",
            Self::IdempotencyMismatch => "Idempotency key was used for another request",
            Self::Fenced => "Lease lost",
            Self::TooLarge => "Too large",
            Self::UnsupportedMediaType => "Unsupported media type",
            Self::JobRefused => "Job refused",
            Self::Unavailable => "Unavailable",
            Self::Internal => "Internal error",
        }
    }

    /// Whether the same request may succeed later.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::Unavailable | Self::Internal => true,
            Self::InvalidRequest
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotFound
            | Self::MethodNotAllowed
            | Self::Conflict
            | Self::IdempotencyMismatch
            | Self::Fenced
            | Self::TooLarge
            | Self::UnsupportedMediaType
            | Self::JobRefused => false,
        }
    }
}

/// An error body, `application/problem+json`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ProblemBody {
    /// `/problems/` and the code.
    pub r#type: String,
    /// Short text for people.
    pub title: String,
    /// HTTP status.
    pub status: u16,
    /// What happened this time.
    pub detail: String,
    /// For programs.
    pub code: ProblemCode,
    /// Whether the same request may succeed later.
    pub retryable: bool,
    /// One entry for each field at fault.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
    /// Names this request in the server's log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
}

impl ProblemBody {
    /// The body for `code`.
    pub fn new(code: ProblemCode, detail: impl Into<String>) -> Self {
        let label = serde_json::to_value(code).expect("a unit variant is a string");
        Self {
            r#type: format!("/problems/{}", label.as_str().unwrap_or_default()),
            title: code.title().to_owned(),
            status: code.status(),
            detail: detail.into(),
            code,
            retryable: code.is_retryable(),
            errors: Vec::new(),
            request_id: None,
        }
    }
}
