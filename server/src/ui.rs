//! The web page, built into the program, and the paths of its own that it draws by itself.

use axum::http::{HeaderValue, Method, Uri, header};
use axum::response::{IntoResponse, Response};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::problem::Problem;

/// The built page. `build.rs` puts a stand-in there when it has not been built.
#[derive(RustEmbed)]
#[folder = "../ui/dist"]
struct Assets;

/// Scripts only from here; styles inline too, since the component library sets them on elements.
const CONTENT_SECURITY_POLICY: &str = "default-src 'self'; script-src 'self'; style-src 'self' 'unsafe-inline'; \
     img-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; \
     frame-ancestors 'none'";

/// Everything that is no route: a file of the page, or the page itself for a path that it draws, or a Problem.
pub(crate) async fn fallback(method: Method, uri: Uri) -> Response {
    let path = uri.path().trim_start_matches('/');
    if is_api(path) {
        return Problem::NoRoute.into_response();
    }
    if method != Method::GET && method != Method::HEAD {
        return Problem::MethodNotAllowed.into_response();
    }
    if let Some(file) = Assets::get(path).filter(|_| path != "index.html") {
        // Files under `assets/` carry a hash of their content in the name.
        let lifetime = if path.starts_with("assets/") {
            "public, max-age=31536000, immutable"
        } else {
            "no-cache"
        };
        return respond(file, lifetime);
    }
    let looks_like_a_file = path.rsplit('/').next().is_some_and(|name| name.contains('.'));
    match Assets::get("index.html") {
        Some(page) if !looks_like_a_file || path == "index.html" => respond(page, "no-cache"),
        _ => Problem::NoRoute.into_response(),
    }
}

fn is_api(path: &str) -> bool {
    path == "v1" || path.starts_with("v1/")
}

fn respond(file: EmbeddedFile, lifetime: &'static str) -> Response {
    let kind = HeaderValue::from_str(file.metadata.mimetype())
        .unwrap_or(HeaderValue::from_static("application/octet-stream"));
    let headers = [
        (header::CONTENT_TYPE, kind),
        (header::CACHE_CONTROL, HeaderValue::from_static(lifetime)),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(CONTENT_SECURITY_POLICY)),
        (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
        (header::REFERRER_POLICY, HeaderValue::from_static("no-referrer")),
    ];
    (headers, file.data.into_owned()).into_response()
}
