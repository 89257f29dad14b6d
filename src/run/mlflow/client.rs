//! Address, credentials and requests of an MLflow tracking server.

use crate::data::download::http_client;
use anyhow::{Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use std::{env, fs::File, path::Path, time::Duration};
use ureq::{
    Agent, AsSendBody,
    http::{Method, Request, Uri},
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Limit for a request during training. A server that is started may take long for its first answer.
pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
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
    /// A refusal without an error code.
    pub fn refused(reason: impl Into<String>) -> Self {
        Failure::Refused { code: String::new(), reason: reason.into() }
    }

    pub fn has_code(&self, expected: &str) -> bool {
        matches!(self, Failure::Refused { code, .. } if code == expected)
    }
}

/// MLflow tracking server with the credentials of the environment, and a time limit for each request.
///
/// `MLFLOW_TRACKING_USERNAME` with `MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN`, as in MLflow's own client.
#[derive(Clone)]
pub struct Server {
    uri: String,
    authorization: Option<String>,
    secrets: Vec<String>,
    agent: Agent,
    timeout: Duration,
}

impl Server {
    /// Parses a URI and reads the credentials.
    ///
    /// # Errors
    /// If [`check`](Self::check) fails.
    pub fn new(uri: &str) -> Result<Self> {
        Self::check(uri)?;
        let read = |name: &str| {
            let value = env::var(name).ok().map(|value| value.trim().to_owned());
            value.filter(|value| !value.is_empty())
        };
        let user = read("MLFLOW_TRACKING_USERNAME").zip(read("MLFLOW_TRACKING_PASSWORD"));
        let (authorization, secrets) = match (user, read("MLFLOW_TRACKING_TOKEN")) {
            (Some((name, password)), _) => {
                let encoded = STANDARD.encode(format!("{name}:{password}"));
                (Some(format!("Basic {encoded}")), vec![encoded, password])
            }
            (None, Some(token)) => (Some(format!("Bearer {token}")), vec![token]),
            (None, None) => (None, vec![]),
        };
        let config = http_client(uri, CONNECT_TIMEOUT)
            .http_status_as_error(false)
            // A redirected POST request would become a GET request.
            .max_redirects(0)
            .max_redirects_will_error(false);
        let (uri, agent) = (uri.trim_end_matches('/').to_owned(), config.build().into());
        Ok(Self { uri, authorization, secrets, agent, timeout: REQUEST_TIMEOUT })
    }

    /// Checks that `uri` is an HTTP address without credentials, and that the program has the feature `mlflow`.
    ///
    /// # Errors
    /// If it is not. No error contains credentials.
    pub fn check(uri: &str) -> Result<()> {
        if uri.contains('@') {
            bail!(
                "the URI contains a user or password; remove them and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            );
        }
        if uri.contains(['?', '#']) {
            bail!("the URI must end with the host, port or path; remove the query");
        }
        if !cfg!(feature = "mlflow") {
            bail!("{uri}: this program was built without the feature `mlflow`");
        }
        let parsed = uri.parse::<Uri>().unwrap_or_default();
        let has_host = parsed.host().is_some_and(|host| !host.is_empty());
        match parsed.scheme_str() {
            Some("http" | "https") if has_host => Ok(()),
            _ => bail!("`{uri}` is not the address of an MLflow server; use http://HOST:PORT"),
        }
    }

    /// URI without a slash at its end.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// The server with a time limit for each request.
    pub(super) fn within(&self, timeout: Duration) -> Self {
        Self { timeout, ..self.clone() }
    }

    /// Removes credentials from a text that a server has sent.
    fn mask(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }

    /// Calls an endpoint of the tracking API with a JSON body.
    pub(super) fn post(&self, endpoint: &str, body: &Value) -> Result<Value, Failure> {
        self.call(Method::POST, &format!("mlflow/{endpoint}"), body.to_string())
    }

    /// Calls an endpoint of the tracking API with a query of one field.
    pub(super) fn get(&self, endpoint: &str, name: &str, value: &str) -> Result<Value, Failure> {
        self.call(Method::GET, &format!("mlflow/{endpoint}?{name}={}", encoded(value)), ())
    }

    /// Uploads a file to a path of the server's artifact store.
    pub(super) fn upload(&self, path: &str, file: &Path) -> Result<(), Failure> {
        let unreadable = |error| Failure::Temporary(format!("cannot read {}: {error}", file.display()));
        let content = File::open(file).map_err(unreadable)?;
        let path: Vec<String> = path.split('/').map(encoded).collect();
        let path = format!("mlflow-artifacts/artifacts/{}", path.join("/"));
        self.call(Method::PUT, &path, content).map(drop)
    }

    fn call(&self, method: Method, path: &str, body: impl AsSendBody) -> Result<Value, Failure> {
        let content = if method == Method::PUT { "application/octet-stream" } else { "application/json" };
        let mut request = Request::builder().method(method).uri(format!("{}/api/2.0/{path}", self.uri));
        request = request.header("Content-Type", content);
        if let Some(authorization) = &self.authorization {
            request = request.header("Authorization", authorization);
        }
        let temporary = |error: ureq::Error| Failure::Temporary(self.mask(&error.to_string()));
        let request = request.body(body).map_err(|error| temporary(error.into()))?;
        let request = self.agent.configure_request(request).timeout_global(Some(self.timeout)).build();
        let answer = self.agent.run(request).map_err(temporary)?;
        let status = answer.status();
        let text = answer.into_body().into_with_config().limit(MAX_ANSWER).read_to_string();
        let text = text.map_err(temporary)?;
        // Uploads may be answered by an empty body.
        let parsed = if text.trim().is_empty() { Ok(json!({})) } else { serde_json::from_str(&text) };
        if status.is_success() {
            let reason = "the answer is not JSON; check that the URI is that of an MLflow server";
            return parsed.map_err(|_| Failure::refused(reason));
        }
        let parsed = parsed.unwrap_or_default();
        let field = |name: &str| parsed.get(name).and_then(Value::as_str).unwrap_or_default();
        let message = self.mask(field("message").lines().next().unwrap_or_default());
        let message: String = message.chars().take(MAX_REASON).collect();
        let reason = format!("{status} {message}").trim().to_owned();
        match status.is_server_error() || [408, 429].contains(&status.as_u16()) {
            true => Err(Failure::Temporary(reason)),
            false => Err(Failure::Refused { code: field("error_code").into(), reason }),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_addresses_are_refused_without_their_passwords() {
        for bad in ["", "host:5000", "file:///tmp/x", "http://", "ftp://host", "http://ho st"] {
            assert!(Server::check(bad).is_err(), "{bad}");
        }
        for secret in ["http://me:hunter2@host", "postgresql://me:hunter2@host", "http://host?token=hunter2"]
        {
            let error = format!("{:#}", Server::check(secret).expect_err(secret));
            assert!(!error.contains("hunter2"), "{error}");
        }
        for good in ["http://localhost:5000", "https://host/", "http://[::1]:5000/mlflow"] {
            Server::check(good).expect(good);
        }
    }
}
