//! RFC 9457: every error that leaves the server, `application/problem+json`, from a closed set.

use std::error::Error as StdError;

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use lockstep_api::{FieldError, ProblemBody, ProblemCode, Role};

/// What went wrong with a request.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The request could not be understood.
    #[error("the request could not be understood")]
    Invalid(Vec<FieldError>),
    /// No token, or one that is unknown, expired or revoked.
    #[error("a valid token is needed: `Authorization: Bearer …`")]
    Unauthenticated,
    /// The token's role does not reach.
    #[error("{what} needs the role {needed}, the token has {has}")]
    Forbidden {
        /// What the caller wants: `this`.
        what: String,
        /// What the operation asks for.
        needed: Role,
        /// What the caller has.
        has: Role,
    },
    /// No such thing, or not of this project.
    #[error("there is no {kind} {id}")]
    NotFound {
        /// A noun: `job`.
        kind: &'static str,
        /// As it came.
        id: String,
    },
    /// No such path.
    #[error("there is nothing at this path")]
    NoRoute,
    /// The method does not fit the path.
    #[error("this path does not know that method")]
    MethodNotAllowed,
    /// The thing's state does not allow it.
    #[error("{0}")]
    Conflict(String),
    /// The same idempotency key came with another request.
    #[error("the idempotency key was used for another request")]
    IdempotencyMismatch,
    /// The sender's lease was given away.
    #[error("the lease under this generation is lost: stop the ranks")]
    Fenced,
    /// The body is larger than the limit.
    #[error("the body is larger than {limit_bytes} bytes")]
    TooLarge {
        /// The limit.
        limit_bytes: usize,
    },
    /// The body's type is not supported.
    #[error("expected a body of type {expected}")]
    UnsupportedMediaType {
        /// The type that is.
        expected: &'static str,
    },
    /// The job was refused by the check at submit.
    #[error("the job does not fit")]
    Refused(Vec<FieldError>),
    /// Not now; try again.
    #[error("{0}")]
    Unavailable(String),
    /// The database did not do what it was asked. The caller learns nothing but the status; the log gets the chain.
    #[error("internal error")]
    Database(#[from] sqlx::Error),
    /// A fault of the server's own, likewise.
    #[error("internal error")]
    Internal(#[source] Box<dyn StdError + Send + Sync>),
}

/// Postgres conditions that pass by themselves: serialization failure, deadlock, lock or statement timeout, shutdown,
/// too many connections.
const PASSING_CONDITIONS: [&str; 8] =
    ["40001", "40P01", "55P03", "57014", "57P01", "57P02", "57P03", "53300"];

/// Text that Postgres cannot store: it came from the request.
const UNSTORABLE: [&str; 2] = ["22021", "22P05"];

impl Problem {
    /// One field is at fault.
    pub fn field(field: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid(vec![FieldError::new(field, message)])
    }

    /// `kind`: a noun.
    pub fn not_found(kind: &'static str, id: impl ToString) -> Self {
        Self::NotFound { kind, id: id.to_string() }
    }

    /// A fault of the server's own.
    pub fn internal(source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        Self::Internal(source.into())
    }

    /// Its place in the closed set.
    pub fn code(&self) -> ProblemCode {
        match self {
            Self::Invalid(_) => ProblemCode::InvalidRequest,
            Self::Unauthenticated => ProblemCode::Unauthenticated,
            Self::Forbidden { .. } => ProblemCode::Forbidden,
            Self::NotFound { .. } | Self::NoRoute => ProblemCode::NotFound,
            Self::MethodNotAllowed => ProblemCode::MethodNotAllowed,
            Self::Conflict(_) => ProblemCode::Conflict,
            Self::IdempotencyMismatch => ProblemCode::IdempotencyMismatch,
            Self::Fenced => ProblemCode::Fenced,
            Self::TooLarge { .. } => ProblemCode::TooLarge,
            Self::UnsupportedMediaType { .. } => ProblemCode::UnsupportedMediaType,
            Self::Refused(_) => ProblemCode::JobRefused,
            Self::Unavailable(_) => ProblemCode::Unavailable,
            Self::Database(error) if is_passing(error) => ProblemCode::Unavailable,
            Self::Database(error) if has_code(error, &UNSTORABLE) => ProblemCode::InvalidRequest,
            Self::Database(_) | Self::Internal(_) => ProblemCode::Internal,
        }
    }

    fn body(self) -> ProblemBody {
        let code = self.code();
        let detail = match (&self, code) {
            (Self::Database(_), ProblemCode::Unavailable) => {
                "the database does not answer just now".to_owned()
            }
            (Self::Database(_), ProblemCode::InvalidRequest) => {
                "the request holds text with a NUL character".to_owned()
            }
            (Self::Invalid(errors) | Self::Refused(errors), _) if !errors.is_empty() => {
                errors[0].to_string()
            }
            _ => self.to_string(),
        };
        let mut body = ProblemBody::new(code, detail);
        if let Self::Invalid(errors) | Self::Refused(errors) = self {
            body.errors = errors;
        }
        body
    }
}

fn is_passing(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Io(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::WorkerCrashed => true,
        error => has_code(error, &PASSING_CONDITIONS),
    }
}

fn has_code(error: &sqlx::Error, codes: &[&str]) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    code.is_some_and(|code| codes.contains(&code.as_ref()))
}

impl From<FieldError> for Problem {
    fn from(error: FieldError) -> Self {
        Self::Invalid(vec![error])
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        if let Self::Database(_) | Self::Internal(_) = &self
            && self.code() != ProblemCode::InvalidRequest
        {
            tracing::error!(error = chain(&self), "request failed");
        }
        render(self.body())
    }
}

/// What lies behind an error that says nothing itself.
fn chain(error: &dyn StdError) -> String {
    let sources = std::iter::successors(error.source(), |&error| error.source());
    sources.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// The response for a body. The body travels along as an extension, for [`crate::router`] to put the request's id in.
pub(crate) fn render(body: ProblemBody) -> Response {
    let status = StatusCode::from_u16(body.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let text = serde_json::to_vec(&body).unwrap_or_default();
    let mut response = (status, text).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if body.code == ProblemCode::Unauthenticated {
        headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if body.code == ProblemCode::Unavailable {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response.extensions_mut().insert(body);
    response
}
