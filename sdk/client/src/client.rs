//! One connection pool, one token, one way to send a request and read its answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use lockstep_api::ProblemBody;
use reqwest::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::ClientError;
use crate::retry::{self, Policy};

/// Octets of a body that is not JSON.
const OCTETS: HeaderValue = HeaderValue::from_static("application/octet-stream");
/// How much of an answer that cannot be understood is shown.
const SHOWN_BODY_CHARS: usize = 200;
/// Longest JSON answer that is read.
const MAX_JSON_BYTES: usize = 256 << 20;

/// Settings of a [`Client`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientOptions {
    /// How calls that may be repeated are retried.
    pub retry: Policy,
    /// Longest wait for a connection.
    pub connect_timeout: Duration,
    /// Longest wait for a whole answer, but for parked polls, event streams and files.
    pub request_timeout: Duration,
    /// Longest silence of an event stream. The server sends a comment every 15 seconds.
    pub stream_silence: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self {
            retry: Policy::BRIEF,
            connect_timeout: Duration::from_secs(5),
            request_timeout: Duration::from_secs(60),
            stream_silence: Duration::from_secs(45),
        }
    }
}

/// Speaks to one server with one token. Clones share the connections.
#[derive(Clone)]
pub struct Client {
    http: reqwest::Client,
    base: Arc<Url>,
    authorization: Option<HeaderValue>,
    pub(crate) options: ClientOptions,
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client").field("base", &self.base.as_str()).finish_non_exhaustive()
    }
}

/// One request, kept so that it can be sent again.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) method: Method,
    pub(crate) url: Url,
    pub(crate) body: Body,
    pub(crate) headers: Vec<(&'static str, HeaderValue)>,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) enum Body {
    Empty,
    Json(Bytes),
    Octets(Bytes),
}

impl Call {
    pub(crate) fn octets(mut self, bytes: Bytes) -> Self {
        self.body = Body::Octets(bytes);
        self
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Self {
        let text =
            serde_json::to_vec(body).expect("wire types have string keys and finite numbers");
        self.body = Body::Json(text.into());
        self
    }

    pub(crate) fn header(mut self, name: &'static str, value: HeaderValue) -> Self {
        self.headers.push((name, value));
        self
    }

    pub(crate) fn timeout(mut self, timeout: Option<Duration>) -> Self {
        self.timeout = timeout;
        self
    }

    /// Adds `name=value` to the query.
    pub(crate) fn query(mut self, name: &str, value: impl fmt::Display) -> Self {
        self.url.query_pairs_mut().append_pair(name, &value.to_string());
        self
    }
}

impl Client {
    /// A client of the server at `url` (`http://host:port`) that speaks with `token`.
    ///
    /// # Errors
    /// A URL that is not `http://host…`; a token that is no text of printable characters.
    pub fn new(url: &str, token: &str) -> Result<Self, ClientError> {
        Self::with_options(url, Some(token), ClientOptions::default())
    }

    /// A client without a token: for joining, and for asking whether a server is there.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn anonymous(url: &str) -> Result<Self, ClientError> {
        Self::with_options(url, None, ClientOptions::default())
    }

    /// A client with settings of one's own.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_options(
        url: &str,
        token: Option<&str>,
        options: ClientOptions,
    ) -> Result<Self, ClientError> {
        let base = Arc::new(parse_base(url)?);
        let authorization = token.map(authorization).transpose()?;
        let http = reqwest::Client::builder()
            .connect_timeout(options.connect_timeout)
            .tcp_nodelay(true)
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("lockstep-client/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(ClientError::Setup)?;
        Ok(Self { http, base, authorization, options })
    }

    /// The same connections, another token.
    ///
    /// # Errors
    /// A token that is no text of printable characters.
    pub fn with_token(&self, token: &str) -> Result<Self, ClientError> {
        Ok(Self { authorization: Some(authorization(token)?), ..self.clone() })
    }

    /// Where the server is.
    pub fn url(&self) -> &str {
        self.base.as_str().trim_end_matches('/')
    }

    /// A request to `segments` below the server's URL, each made safe as one part of the path.
    pub(crate) fn call(&self, method: Method, segments: &[&str]) -> Call {
        let mut url = Url::clone(&self.base);
        url.path_segments_mut().expect("an http URL has a path").pop_if_empty().extend(segments);
        let timeout = Some(self.options.request_timeout);
        Call { method, url, body: Body::Empty, headers: Vec::new(), timeout }
    }

    /// Sends once; an answer that is no success is an error.
    pub(crate) async fn send(&self, call: &Call) -> Result<Response, ClientError> {
        let unreachable = |source: reqwest::Error| ClientError::Unreachable {
            url: call.url.to_string(),
            source: source.without_url(),
        };
        let response = self.request(call).send().await.map_err(unreachable)?;
        if response.status().is_success() {
            return Ok(response);
        }
        let status = response.status();
        let body = read_bounded(response, &call.url).await?;
        Err(refusal(&call.url, status, &body))
    }

    fn request(&self, call: &Call) -> RequestBuilder {
        let mut request = self.http.request(call.method.clone(), call.url.clone());
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization.clone());
        }
        if let Some(timeout) = call.timeout {
            request = request.timeout(timeout);
        }
        for (name, value) in &call.headers {
            request = request.header(*name, value.clone());
        }
        match &call.body {
            Body::Empty => request,
            Body::Json(text) => request
                .header(CONTENT_TYPE, HeaderValue::from_static("application/json"))
                .body(text.clone()),
            Body::Octets(bytes) => request.header(CONTENT_TYPE, OCTETS).body(bytes.clone()),
        }
    }

    async fn send_for_bytes(&self, call: &Call) -> Result<Bytes, ClientError> {
        let response = self.send(call).await?;
        read_bounded(response, &call.url).await
    }

    /// Sends once and reads the result.
    pub(crate) async fn once<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        decode(&call.url, &self.send_for_bytes(&call).await?)
    }

    /// Sends once and looks at nothing but the status.
    pub(crate) async fn once_unit(&self, call: Call) -> Result<(), ClientError> {
        self.send_for_bytes(&call).await.map(drop)
    }

    /// Sends, again if need be, and reads the result. Only for calls that may be repeated.
    pub(crate) async fn repeat<T: DeserializeOwned>(&self, call: Call) -> Result<T, ClientError> {
        let body = retry::run(self.options.retry, || self.send_for_bytes(&call)).await?;
        decode(&call.url, &body)
    }

    /// Sends, again if need be, and looks at nothing but the status. Only for calls that may be repeated.
    pub(crate) async fn repeat_unit(&self, call: Call) -> Result<(), ClientError> {
        retry::run(self.options.retry, || self.send_for_bytes(&call)).await.map(drop)
    }

    /// Sends, again if need be, and reads octets. Only for calls that may be repeated.
    pub(crate) async fn repeat_bytes(&self, call: Call) -> Result<Bytes, ClientError> {
        retry::run(self.options.retry, || self.send_for_bytes(&call)).await
    }
}

fn authorization(token: &str) -> Result<HeaderValue, ClientError> {
    let mut value = HeaderValue::from_str(&format!("Bearer {}", token.trim()))
        .map_err(|_| ClientError::InvalidToken)?;
    value.set_sensitive(true);
    Ok(value)
}

fn parse_base(url: &str) -> Result<Url, ClientError> {
    let invalid =
        |reason: &str| ClientError::InvalidUrl { url: url.to_owned(), reason: reason.to_owned() };
    let parsed: Url = url
        .trim()
        .parse()
        .map_err(|error| invalid(&format!("expected http://HOST:PORT ({error})")))?;
    match parsed.scheme() {
        "http" => {}
        "https" => {
            return Err(invalid(
                "this client cannot speak TLS yet; use http:// through a tunnel or a private network",
            ));
        }
        _ => return Err(invalid("expected http://HOST:PORT")),
    }
    if !parsed.username().is_empty() || parsed.password().is_some() {
        return Err(invalid(
            "expected no user name or password; a token is given apart from the URL",
        ));
    }
    if parsed.query().is_some() || parsed.fragment().is_some() {
        return Err(invalid("expected nothing after the path"));
    }
    Ok(parsed)
}

/// Reads a whole answer, up to [`MAX_JSON_BYTES`].
async fn read_bounded(mut response: Response, url: &Url) -> Result<Bytes, ClientError> {
    let broken = |source: reqwest::Error| ClientError::Unreachable {
        url: url.to_string(),
        source: source.without_url(),
    };
    let status = response.status();
    let Some(first) = response.chunk().await.map_err(broken)? else { return Ok(Bytes::new()) };
    let Some(second) = response.chunk().await.map_err(broken)? else { return Ok(first) };
    let mut body = Vec::with_capacity(first.len() + second.len());
    body.extend_from_slice(&first);
    body.extend_from_slice(&second);
    while let Some(more) = response.chunk().await.map_err(broken)? {
        if MAX_JSON_BYTES < body.len() + more.len() {
            let body = format!("more than {MAX_JSON_BYTES} bytes");
            return Err(ClientError::UnexpectedAnswer { url: url.to_string(), status, body });
        }
        body.extend_from_slice(&more);
    }
    Ok(body.into())
}

fn decode<T: DeserializeOwned>(url: &Url, body: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(body)
        .map_err(|source| ClientError::Decode { url: url.to_string(), source })
}

fn refusal(url: &Url, status: StatusCode, body: &[u8]) -> ClientError {
    match serde_json::from_slice::<ProblemBody>(body) {
        Ok(problem) => ClientError::Problem(Box::new(problem)),
        Err(_) => {
            let body = String::from_utf8_lossy(body).chars().take(SHOWN_BODY_CHARS).collect();
            ClientError::UnexpectedAnswer { url: url.to_string(), status, body }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_that_is_not_plain_http_is_refused_with_what_was_expected() {
        for (url, part) in [
            ("https://lockstep.example", "TLS"),
            ("lockstep.example:80", "http://HOST:PORT"),
            ("ftp://lockstep.example", "http://HOST:PORT"),
            ("http://me:secret@lockstep.example", "no user name"),
            ("http://lockstep.example/?a=b", "nothing after"),
        ] {
            let message = Client::new(url, "t").unwrap_err().to_string();
            assert!(message.contains(part), "{url}: {message}");
        }
    }

    #[test]
    fn a_path_below_the_base_keeps_its_parts_apart() {
        for base in ["http://h:1", "http://h:1/"] {
            let call =
                Client::new(base, "t").unwrap().call(Method::GET, &["v1", "datasets", "a/b c"]);
            assert_eq!(call.url.as_str(), "http://h:1/v1/datasets/a%2Fb%20c");
        }
        let behind_prefix = Client::new("http://h/lockstep/", "t").unwrap();
        assert_eq!(
            behind_prefix.call(Method::GET, &["v1", "me"]).url.as_str(),
            "http://h/lockstep/v1/me"
        );
    }

    #[test]
    fn debug_shows_no_token() {
        let client = Client::new("http://h:1", "lsk_secret").unwrap();
        assert!(!format!("{client:?}").contains("secret"));
    }
}
