//! The whole API in one list, and the layers around it in order.

use std::any::Any;
use std::time::Duration;

use axum::Router;
use axum::extract::{DefaultBodyLimit, Extension, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use lockstep_api::{ProblemBody, ProblemCode};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::timeout::{RequestBodyTimeoutLayer, TimeoutLayer};
use tower_http::trace::TraceLayer;
use utoipa::OpenApi as _;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::app::App;
use crate::extract::{BodyLimit, RequestId};
use crate::openapi::{Document, complete};
use crate::problem::{Problem, render};
use crate::{attempts, checkpoints, data, events, jobs, nodes, progress, tokens, ui};

/// A JSON body may be so long, bytes.
const JSON_BYTES: usize = 1 << 20;
/// Manifests of datasets, and agents' reports, may be so long, bytes.
const LONG_JSON_BYTES: usize = 8 << 20;
/// A body of raw bytes is one chunk.
const CHUNK_BYTES: usize = lockstep_api::CHUNK_BYTES;
/// A JSON request is answered within this time. Above the database's own limits, so that those speak first.
const JSON_TIME: Duration = Duration::from_secs(30);
/// A body whose bytes stop coming for so long is given up.
const BODY_PAUSE: Duration = Duration::from_secs(30);
/// A request id from outside may be so long, bytes.
const REQUEST_ID_BYTES: usize = 64;

static REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// JSON in, JSON out, soon.
fn json_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(tokens::http::get_me))
        .routes(routes!(tokens::http::create_token, tokens::http::list_tokens))
        .routes(routes!(tokens::http::revoke_token))
        .routes(routes!(tokens::http::create_join_token))
        .routes(routes!(data::http::missing_chunks))
        .routes(routes!(data::http::missing_files))
        .routes(routes!(data::http::get_dataset))
        .routes(routes!(jobs::http::list_jobs))
        .routes(routes!(jobs::http::get_job))
        .routes(routes!(jobs::http::cancel_job))
        .routes(routes!(attempts::http::ranks))
        .routes(routes!(jobs::http::pause_job))
        .routes(routes!(jobs::http::resume_job))
        .routes(routes!(progress::http::metrics))
        .routes(routes!(progress::http::log))
        .routes(routes!(progress::http::ledger))
        .routes(routes!(progress::http::timeline))
        .routes(routes!(checkpoints::http::pin_checkpoint, checkpoints::http::unpin_checkpoint))
        .routes(routes!(nodes::http::list))
        .routes(routes!(nodes::admin::release))
        .routes(routes!(nodes::admin::drain))
        .routes(routes!(nodes::admin::undrain))
}

/// Likewise, with long bodies.
fn long_json_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(data::http::register_dataset))
}

/// JSON of agents (`/v1/agent/…`), soon.
fn agent_json_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(nodes::http::join))
        .routes(routes!(nodes::http::heartbeat))
        .routes(routes!(checkpoints::agent::missing))
        .routes(routes!(checkpoints::agent::get_file))
}

/// Agents' reports: long bodies.
fn agent_long_json_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new().routes(routes!(attempts::http::reports))
}

/// Raw bytes in or out: no time limit but on the body's pauses.
fn bytes_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(data::http::put_chunk))
        .routes(routes!(checkpoints::agent::put_chunk, checkpoints::agent::get_chunk))
        .routes(routes!(checkpoints::http::file))
}

/// Answers that take as long as they take: event streams, parked polls, and what has time limits of its own.
fn parked_routes() -> OpenApiRouter<App> {
    OpenApiRouter::new()
        .routes(routes!(jobs::http::submit_job))
        .routes(routes!(data::http::put_file))
        .routes(routes!(events::http::stream_job_events))
        .routes(routes!(nodes::http::poll))
        .routes(routes!(checkpoints::agent::publish_checkpoint))
}

/// The API with its description.
pub(crate) fn api() -> OpenApiRouter<App> {
    let in_time = TimeoutLayer::with_status_code(StatusCode::SERVICE_UNAVAILABLE, JSON_TIME);
    OpenApiRouter::with_openapi(Document::openapi())
        .merge(limited(json_routes().merge(agent_json_routes()), JSON_BYTES).layer(in_time))
        .merge(
            limited(long_json_routes().merge(agent_long_json_routes()), LONG_JSON_BYTES)
                .layer(in_time),
        )
        .merge(limited(bytes_routes(), CHUNK_BYTES))
        .merge(limited(parked_routes(), JSON_BYTES))
}

fn limited(routes: OpenApiRouter<App>, bytes: usize) -> OpenApiRouter<App> {
    routes
        .layer(DefaultBodyLimit::max(bytes))
        .layer(Extension(BodyLimit(bytes)))
        .layer(RequestBodyTimeoutLayer::new(BODY_PAUSE))
}

/// Everything the server answers.
pub fn router(app: App) -> Router {
    let (api, document) = api().split_for_parts();
    let document = complete(document).to_json().unwrap_or_default();
    let description = move || async move {
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], document)
    };
    let routes = api
        .route("/openapi.json", get(description))
        .route("/healthz", get(health))
        .fallback(ui::fallback)
        .method_not_allowed_fallback(async || Problem::MethodNotAllowed);
    layered(app, routes)
}

/// What surrounds every route, innermost first.
fn layered(app: App, routes: Router<App>) -> Router {
    routes
        .layer(CatchPanicLayer::custom(panicked))
        .layer(TraceLayer::new_for_http().make_span_with(span).on_request(()))
        .layer(middleware::from_fn_with_state(app.clone(), identify))
        .with_state(app)
}

/// Whether the server can do its work.
async fn health(State(app): State<App>) -> Result<&'static str, Problem> {
    app.db.ping().await?;
    Ok("ok\n")
}

/// Gives the request an id, and puts it into every error on its way out. What is not yet a Problem becomes one.
async fn identify(State(app): State<App>, mut request: Request, next: Next) -> Response {
    let given = request.headers().get(&REQUEST_ID).and_then(|id| id.to_str().ok());
    let id = match given.filter(|id| is_request_id(id)) {
        Some(id) => id.to_owned(),
        None => app.random.bytes::<8>().map(|byte| format!("{byte:02x}")).concat(),
    };
    request.extensions_mut().insert(RequestId(id.clone()));
    let mut response = next.run(request).await;
    if response.status().is_client_error() || response.status().is_server_error() {
        let mut body = match response.extensions_mut().remove::<ProblemBody>() {
            Some(body) => body,
            None => foreign(response.status()),
        };
        body.request_id = Some(id.clone());
        response = render(body);
    }
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&id) {
        headers.insert(REQUEST_ID.clone(), id);
    }
    // Answers of the API hold other people's work, and some hold secrets.
    headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    response
}

fn is_request_id(text: &str) -> bool {
    (1..=REQUEST_ID_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

/// A refusal that a layer made without knowing of Problems.
fn foreign(status: StatusCode) -> ProblemBody {
    let (code, detail) = match status {
        StatusCode::NOT_FOUND => (ProblemCode::NotFound, "there is nothing at this path"),
        StatusCode::METHOD_NOT_ALLOWED => {
            (ProblemCode::MethodNotAllowed, "this path does not know that method")
        }
        StatusCode::PAYLOAD_TOO_LARGE => {
            (ProblemCode::TooLarge, "the body is larger than the limit")
        }
        StatusCode::UNSUPPORTED_MEDIA_TYPE => {
            (ProblemCode::UnsupportedMediaType, "the body's type is not supported")
        }
        StatusCode::SERVICE_UNAVAILABLE => (ProblemCode::Unavailable, "the answer took too long"),
        status if status.is_client_error() => {
            (ProblemCode::InvalidRequest, "the request could not be understood")
        }
        _ => (ProblemCode::Internal, "internal error"),
    };
    ProblemBody::new(code, detail)
}

fn panicked(payload: Box<dyn Any + Send>) -> Response {
    let message = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("a panic without a message");
    Problem::internal(format!("panic: {message}")).into_response()
}

/// Names the route, not the path: paths hold ids, and the request's id leads to those.
fn span(request: &Request) -> tracing::Span {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let id = request.extensions().get::<RequestId>().map_or("", |RequestId(id)| id.as_str());
    tracing::info_span!("http.request", method = %request.method(), route, request.id = id)
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use lockstep_service::{Clock, Shutdown};
    use sqlx::postgres::PgPoolOptions;
    use tower::ServiceExt as _;

    use super::*;
    use crate::app::Random;
    use crate::config::Settings;
    use crate::db::Db;

    fn app() -> App {
        // Never used: these routes ask no database.
        let pool = PgPoolOptions::new().connect_lazy("postgres://nobody@localhost/none").unwrap();
        let settings = Settings {
            rank_binary: "/nowhere".into(),
            data_dir: "/nowhere".into(),
            heartbeat: Duration::from_secs(1),
            lease: Duration::from_secs(3),
            orphan_grace: Duration::from_secs(10),
            check_time: Duration::from_secs(1),
        };
        App::new(Db::from_pool(pool), Clock::system(), Random::system(), Shutdown::new(), settings)
    }

    async fn problem_of(route: axum::routing::MethodRouter<App>) -> ProblemBody {
        let router = layered(app(), Router::new().route("/x", route));
        let response =
            router.oneshot(Request::get("/x").body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        let status = response.status().as_u16();
        let body: ProblemBody =
            serde_json::from_slice(&to_bytes(response.into_body(), 1 << 16).await.unwrap())
                .unwrap();
        assert_eq!(body.status, status);
        assert!(body.request_id.is_some());
        body
    }

    #[tokio::test]
    async fn a_panic_is_an_internal_problem_that_tells_nothing() {
        async fn broken() -> Response {
            panic!("secret details");
        }
        let body = problem_of(get(broken)).await;
        assert_eq!((body.code, body.detail.as_str()), (ProblemCode::Internal, "internal error"));
    }

    #[tokio::test]
    async fn what_a_layer_refuses_becomes_a_problem() {
        for (status, code) in [
            (StatusCode::SERVICE_UNAVAILABLE, ProblemCode::Unavailable),
            (StatusCode::PAYLOAD_TOO_LARGE, ProblemCode::TooLarge),
            (StatusCode::REQUEST_TIMEOUT, ProblemCode::InvalidRequest),
            (StatusCode::BAD_GATEWAY, ProblemCode::Internal),
        ] {
            assert_eq!(problem_of(get(async move || status)).await.code, code);
        }
    }
}
