//! Requests of MLflow's REST API.

use super::server::Server;
use serde_json::{Value, json};
use std::{fs::File, io::Cursor, path::Path, time::Duration};
use ureq::{
    Agent, Body, SendBody,
    http::{Method, Request, Response},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for the size of an answer. That of `runs/get` contains all parameters.
const MAX_ANSWER: u64 = 16 << 20;
/// Limit for the length of a server's error message.
const MAX_REASON: usize = 200;

/// Reason why a request failed.
#[derive(Debug, PartialEq)]
pub(super) enum Failure {
    /// The server cannot be reached or is overloaded; a later attempt may succeed.
    Temporary(String),
    /// The server refuses the request, with MLflow's error code.
    Refused { code: String, reason: String },
}

impl Failure {
    pub fn reason(&self) -> &str {
        match self {
            Failure::Temporary(reason) | Failure::Refused { reason, .. } => reason,
        }
    }

    pub fn has_code(&self, expected: &str) -> bool {
        matches!(self, Failure::Refused { code, .. } if code == expected)
    }
}

/// HTTP client of a tracking server.
pub(super) struct Client {
    pub server: Server,
    agent: Agent,
}

impl Client {
    pub fn new(server: Server) -> Self {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            // A redirected POST request would become a GET request.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_resolve(Some(CONNECT_TIMEOUT))
            .timeout_connect(Some(CONNECT_TIMEOUT));
        if server.is_local() {
            config = config.proxy(None);
        }
        Self { agent: config.build().into(), server }
    }

    /// Calls an endpoint of the tracking API with a JSON body.
    pub fn post(&self, endpoint: &str, body: &Value, timeout: Duration) -> Result<Value, Failure> {
        let body = body.to_string().into_bytes();
        let length = body.len() as u64;
        let path = format!("/api/2.0/mlflow/{endpoint}");
        self.call(Method::POST, &path, SendBody::from_owned_reader(Cursor::new(body)), length, timeout)
    }

    /// Calls an endpoint of the tracking API with a query of one field.
    pub fn get(
        &self,
        endpoint: &str,
        (name, value): (&str, &str),
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let path = format!("/api/2.0/mlflow/{endpoint}?{name}={}", encoded(value));
        self.call(Method::GET, &path, SendBody::none(), 0, timeout)
    }

    /// Uploads a file to a path of the server's artifact store.
    pub fn upload(&self, path: &str, file: &Path, timeout: Duration) -> Result<(), Failure> {
        let unreadable = |error| Failure::Temporary(format!("cannot read {}: {error}", file.display()));
        let content = File::open(file).map_err(unreadable)?;
        let length = content.metadata().map_err(unreadable)?.len();
        let path: Vec<String> = path.split('/').map(encoded).collect();
        let path = format!("/api/2.0/mlflow-artifacts/artifacts/{}", path.join("/"));
        self.call(Method::PUT, &path, SendBody::from_owned_reader(content), length, timeout).map(|_| ())
    }

    fn call(
        &self,
        method: Method,
        path: &str,
        body: SendBody<'static>,
        length: u64,
        timeout: Duration,
    ) -> Result<Value, Failure> {
        let mut request = Request::builder().method(&method).uri(format!("{}{path}", self.server.uri()));
        if let Some(authorization) = self.server.authorization() {
            request = request.header("Authorization", authorization);
        }
        let content = if method == Method::PUT { "application/octet-stream" } else { "application/json" };
        if method != Method::GET {
            request = request.header("Content-Type", content).header("Content-Length", length);
        }
        let temporary = |error: ureq::Error| Failure::Temporary(self.server.mask(&error.to_string()));
        let request = request.body(body).map_err(|error| temporary(error.into()))?;
        let request = self.agent.configure_request(request).timeout_global(Some(timeout)).build();
        self.read(self.agent.run(request).map_err(temporary)?)
    }

    fn read(&self, answer: Response<Body>) -> Result<Value, Failure> {
        let status = answer.status();
        let text = answer.into_body().into_with_config().limit(MAX_ANSWER).read_to_string();
        let text = text.map_err(|error| Failure::Temporary(self.server.mask(&error.to_string())))?;
        let parsed: Option<Value> = serde_json::from_str(&text).ok();
        if status.is_success() {
            let reason = "the answer is not JSON; check that the URI is that of an MLflow server".into();
            // Uploads may be answered by an empty body.
            let parsed = if text.trim().is_empty() { Some(json!({})) } else { parsed };
            return parsed.ok_or(Failure::Refused { code: String::new(), reason });
        }
        let field = |name: &str| parsed.as_ref()?.get(name)?.as_str().map(str::to_owned);
        let message = field("message").unwrap_or_default();
        let message: String =
            self.server.mask(message.lines().next().unwrap_or_default()).chars().take(MAX_REASON).collect();
        let reason = format!("{status} {message}").trim().to_owned();
        if status.is_server_error() || [408, 429].contains(&status.as_u16()) {
            return Err(Failure::Temporary(reason));
        }
        Err(Failure::Refused { code: field("error_code").unwrap_or_default(), reason })
    }
}

/// Percent-encodes a part of a URI.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}
