//! Json, Path, Query and body bytes whose rejections are Problems, and the authenticated caller.

use axum::RequestPartsExt as _;
use axum::body::Bytes;
use axum::extract::path::ErrorKind;
use axum::extract::rejection::{BytesRejection, FailedToBufferBody, PathRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use lockstep_api::{FieldError, OrganisationId, PrincipalId, ProjectId, Role, TokenId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::app::App;
use crate::problem::Problem;
use crate::tokens;
use crate::tokens::secret::{Presented, TokenKind};

/// A JSON body, both ways.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Json<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequest<App> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        if !is_json(request.headers()) {
            return Err(Problem::UnsupportedMediaType { expected: "application/json" });
        }
        let Body(bytes) = Body::from_request(request, app).await?;
        parse_json(&bytes).map(Self).map_err(Problem::from)
    }
}

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(text) => {
                let kind = HeaderValue::from_static("application/json");
                ([(header::CONTENT_TYPE, kind)], text).into_response()
            }
            Err(error) => Problem::internal(error).into_response(),
        }
    }
}

/// One JSON document and nothing after it, with the path of the field at fault.
pub(crate) fn parse_json<T: DeserializeOwned>(text: &[u8]) -> Result<T, FieldError> {
    let mut deserializer = serde_json::Deserializer::from_slice(text);
    let value = lockstep_api::parse(&mut deserializer)?;
    deserializer.end().map_err(|error| FieldError::new("", error.to_string()))?;
    Ok(value)
}

fn is_json(headers: &HeaderMap) -> bool {
    let Some(kind) = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()) else {
        return false;
    };
    kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"))
}

/// The limit that the route's group set; kept beside axum's own so that a refusal can name it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// The whole body, up to the route's limit.
#[derive(Debug, Clone)]
pub(crate) struct Body(pub(crate) Bytes);

impl FromRequest<App> for Body {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &App) -> Result<Self, Problem> {
        let limit_bytes = request.extensions().get().map_or(0, |BodyLimit(limit)| *limit);
        match Bytes::from_request(request, app).await {
            Ok(bytes) => Ok(Self(bytes)),
            Err(BytesRejection::FailedToBufferBody(FailedToBufferBody::LengthLimitError(_))) => {
                Err(Problem::TooLarge { limit_bytes })
            }
            Err(_) => Err(Problem::field("", "the body ended before its announced length")),
        }
    }
}

/// Parts of the path.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Path<T>(pub(crate) T);

impl<T: DeserializeOwned + Send + 'static> FromRequestParts<App> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        match parts.extract::<axum::extract::Path<T>>().await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(PathRejection::FailedToDeserializePathParams(error)) => {
                Err(match error.into_kind() {
                    ErrorKind::ParseErrorAtKey { key, value, .. } => {
                        Problem::field(key, format!("not understood: {value:?}"))
                    }
                    ErrorKind::DeserializeError { key, value, message } => {
                        Problem::field(key, format!("{message}, got {value:?}"))
                    }
                    ErrorKind::InvalidUtf8InPathParam { key } => {
                        Problem::field(key, "expected UTF-8")
                    }
                    ErrorKind::ParseErrorAtIndex { value, .. }
                    | ErrorKind::ParseError { value, .. } => {
                        Problem::field("path", format!("not understood: {value:?}"))
                    }
                    kind => Problem::field("path", kind.to_string()),
                })
            }
            Err(error) => Err(Problem::internal(error)),
        }
    }
}

/// The query string.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned> FromRequestParts<App> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &App) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        let pairs = form_urlencoded::parse(query.as_bytes());
        lockstep_api::parse(serde_urlencoded::Deserializer::new(pairs))
            .map(Self)
            .map_err(Problem::from)
    }
}

/// Names a request in logs, in problems and in the audit trail.
#[derive(Debug, Clone)]
pub(crate) struct RequestId(pub(crate) String);

/// Who calls: a principal in a project, through a token that is valid now.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    pub(crate) organisation_id: OrganisationId,
    pub(crate) project_id: ProjectId,
    pub(crate) principal_id: PrincipalId,
    pub(crate) token_id: TokenId,
    pub(crate) role: Role,
    pub(crate) request_id: Option<String>,
}

impl Caller {
    /// Refuses a role below `needed`.
    pub(crate) fn require(&self, needed: Role) -> Result<(), Problem> {
        self.require_for("this", needed)
    }

    /// The same, naming `what` needs it.
    pub(crate) fn require_for(&self, what: &str, needed: Role) -> Result<(), Problem> {
        if needed <= self.role {
            Ok(())
        } else {
            Err(Problem::Forbidden { what: what.to_owned(), needed, has: self.role })
        }
    }
}

impl FromRequestParts<App> for Caller {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
        let presented =
            bearer(&parts.headers, TokenKind::Access).ok_or(Problem::Unauthenticated)?;
        let mut tx = app.db.system().await?;
        let bearer = tokens::store::find_bearer(&mut tx, &presented.public_id, app.clock.now())
            .await?
            .filter(|bearer| presented.proves(&bearer.secret_hash))
            .ok_or(Problem::Unauthenticated)?;
        tx.rollback().await?;
        let tokens::store::Bearer {
            token_id,
            organisation_id,
            project_id,
            principal_id,
            role,
            secret_hash: _,
        } = bearer;
        let request_id = parts.extensions.get().map(|RequestId(id)| id.clone());
        Ok(Self { organisation_id, project_id, principal_id, token_id, role, request_id })
    }
}

/// The token in `Authorization: Bearer …`, if it is one of that kind.
pub(crate) fn bearer(headers: &HeaderMap, kind: TokenKind) -> Option<Presented> {
    let text = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = text.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("bearer") {
        return None;
    }
    Presented::parse(kind, token.trim())
}
