//! HTTP for object stores: hyper with rustls, with a limit on each request.
//!
//! Not the client that the other programs use: object stores want TLS, and a TLS feature there would be compiled into every
//! program that speaks to this server.

use std::time::Duration;

use async_trait::async_trait;
use http_body_util::BodyExt as _;
use hyper_rustls::{ConfigBuilderExt as _, HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector as Tcp;
use hyper_util::rt::TokioExecutor;
use object_store::client::{
    ClientConfigKey, ClientOptions, HttpClient, HttpConnector, HttpError, HttpErrorKind,
    HttpRequest, HttpRequestBody, HttpResponse, HttpResponseBody, HttpService,
};
use rustls::{ClientConfig, RootCertStore};

/// Longest wait for a connection.
const CONNECT_TIME: Duration = Duration::from_secs(5);
/// Longest wait from a request to the head of its answer; a chunk has at most 4 MiB.
const REQUEST_TIME: Duration = Duration::from_secs(20);
/// A connection that nobody used for so long is closed.
const IDLE_TIME: Duration = Duration::from_secs(60);

/// Makes clients.
#[derive(Debug)]
pub(crate) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let allows_http =
            options.get_config_value(&ClientConfigKey::AllowHttp).as_deref() == Some("true");
        let mut tcp = Tcp::new();
        tcp.set_connect_timeout(Some(CONNECT_TIME));
        tcp.set_nodelay(true);
        tcp.enforce_http(false);
        let builder = HttpsConnectorBuilder::new().with_tls_config(tls(allows_http)?);
        let builder = match allows_http {
            true => builder.https_or_http(),
            false => builder.https_only(),
        };
        let client = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(IDLE_TIME)
            .pool_timer(hyper_util::rt::TokioTimer::new())
            .build(builder.enable_http1().wrap_connector(tcp));
        Ok(HttpClient::new(Service { client }))
    }
}

/// Trusts whom the system trusts. A machine without any certificate may still use a store over plain HTTP.
fn tls(allows_http: bool) -> object_store::Result<ClientConfig> {
    let failed = |source: Box<dyn std::error::Error + Send + Sync>| object_store::Error::Generic {
        store: "TLS",
        source,
    };
    let builder = || {
        let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
        ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(error.into()))
    };
    match builder()?.with_native_roots() {
        Ok(builder) => Ok(builder.with_no_client_auth()),
        Err(error) if !allows_http => Err(failed(error.into())),
        Err(error) => {
            tracing::warn!(%error, "no trusted certificates: the chunk store is reached over plain HTTP only");
            Ok(builder()?.with_root_certificates(RootCertStore::empty()).with_no_client_auth())
        }
    }
}

#[derive(Debug)]
struct Service {
    client: Client<HttpsConnector<Tcp>, HttpRequestBody>,
}

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let answer = tokio::time::timeout(REQUEST_TIME, self.client.request(request)).await;
        let answer = answer.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?;
        let answer = answer.map_err(|error| {
            let kind = match error.is_connect() {
                true => HttpErrorKind::Connect,
                false => HttpErrorKind::Request,
            };
            HttpError::new(kind, error)
        })?;
        let (parts, body) = answer.into_parts();
        let body = body.map_err(|error| HttpError::new(HttpErrorKind::Interrupted, error));
        Ok(HttpResponse::from_parts(parts, HttpResponseBody::new(body)))
    }
}
