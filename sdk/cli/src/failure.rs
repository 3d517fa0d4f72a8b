//! What a failed command leaves behind for scripts: its exit code.
//!
//! 0 done · 1 the job failed, or anything without a code of its own · 2 wrong use or a job that was refused ·
//! 3 not found · 4 no or not enough rights · 5 conflict · 6 the server cannot be reached · 130 interrupted.

use std::process::ExitCode;

use camino::Utf8Path;
use lockstep_api::ProblemCode;
use lockstep_client::ClientError;

/// A failure of the command line's own.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// The job that was followed did not succeed; the text is its verdict.
    #[error("{0}")]
    JobFailed(String),
    /// The arguments or the job file are wrong.
    #[error("{0}")]
    Usage(String),
    /// No such thing.
    #[error("{0}")]
    NotFound(String),
    /// Nobody said who the caller is.
    #[error("{0}")]
    NoCredentials(String),
    /// Ctrl-C; the text says what goes on without us.
    #[error("{0}")]
    Interrupted(String),
}

/// A file that would be written over.
pub(crate) fn there_already(path: &Utf8Path) -> Failure {
    Failure::Usage(format!("{path} is there already; --force writes over it"))
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::JobFailed(_) => 1,
            Self::Usage(_) => 2,
            Self::NotFound(_) => 3,
            Self::NoCredentials(_) => 4,
            Self::Interrupted(_) => 130,
        }
    }
}

/// The exit code for `error`, by the first of its causes that has one.
pub(crate) fn exit_code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(code_of(error))
}

/// Whether nobody answered.
pub(crate) fn is_unreachable(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| matches!(cause.downcast_ref(), Some(ClientError::Unreachable { .. })))
}

/// Whether the server does not know the token.
pub(crate) fn is_unauthenticated(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| cause.downcast_ref::<ClientError>()?.code());
    code == Some(ProblemCode::Unauthenticated)
}

fn code_of(error: &anyhow::Error) -> u8 {
    error
        .chain()
        .find_map(|cause| {
            let own = cause.downcast_ref::<Failure>().map(Failure::code);
            own.or_else(|| cause.downcast_ref::<ClientError>().map(code_of_client_error))
        })
        .unwrap_or(1)
}

fn code_of_client_error(error: &ClientError) -> u8 {
    match error {
        ClientError::Problem(problem) => code_of_problem(problem.code),
        ClientError::Unreachable { .. }
        | ClientError::StreamBroken { .. }
        | ClientError::UnexpectedAnswer { .. } => 6,
        ClientError::InvalidUrl { .. }
        | ClientError::InvalidToken
        | ClientError::File { .. }
        | ClientError::Unsuitable { .. } => 2,
        ClientError::Decode { .. } | ClientError::Setup(_) | ClientError::DigestMismatch { .. } => {
            1
        }
    }
}

fn code_of_problem(code: ProblemCode) -> u8 {
    match code {
        ProblemCode::InvalidRequest
        | ProblemCode::MethodNotAllowed
        | ProblemCode::TooLarge
        | ProblemCode::UnsupportedMediaType
        | ProblemCode::JobRefused => 2,
        ProblemCode::NotFound => 3,
        ProblemCode::Unauthenticated | ProblemCode::Forbidden => 4,
        ProblemCode::Conflict | ProblemCode::IdempotencyMismatch | ProblemCode::Fenced => 5,
        ProblemCode::Unavailable => 6,
        ProblemCode::Internal => 1,
    }
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;
    use lockstep_api::ProblemBody;

    use super::*;

    fn problem(code: ProblemCode) -> anyhow::Error {
        ClientError::Problem(Box::new(ProblemBody::new(code, "x"))).into()
    }

    #[test]
    fn every_kind_of_failure_has_its_documented_code() {
        assert_eq!(code_of(&problem(ProblemCode::JobRefused)), 2);
        assert_eq!(code_of(&problem(ProblemCode::NotFound)), 3);
        assert_eq!(code_of(&problem(ProblemCode::Unauthenticated)), 4);
        assert_eq!(code_of(&problem(ProblemCode::IdempotencyMismatch)), 5);
        assert_eq!(code_of(&problem(ProblemCode::Unavailable)), 6);
        assert_eq!(code_of(&problem(ProblemCode::Internal)), 1);
        assert_eq!(code_of(&Failure::JobFailed(String::new()).into()), 1);
        assert_eq!(code_of(&Failure::Interrupted(String::new()).into()), 130);
        assert_eq!(code_of(&anyhow::anyhow!("something else")), 1);
    }

    #[test]
    fn a_token_that_is_not_taken_is_told_from_a_role_too_small() {
        assert!(is_unauthenticated(&problem(ProblemCode::Unauthenticated).context("listing")));
        assert!(!is_unauthenticated(&problem(ProblemCode::Forbidden)));
        assert!(!is_unauthenticated(&Failure::NoCredentials(String::new()).into()));
    }

    #[test]
    fn context_around_a_failure_does_not_hide_its_code() {
        let wrapped: anyhow::Result<()> = Err(problem(ProblemCode::NotFound));
        assert_eq!(code_of(&wrapped.context("showing the job").unwrap_err()), 3);
    }
}
