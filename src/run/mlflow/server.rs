//! Address and credentials of an MLflow tracking server.

use anyhow::{Result, bail};
use base64::{Engine, engine::general_purpose::STANDARD};
use std::{env, fmt};
use ureq::http::Uri;

/// MLflow tracking server with the credentials of the environment.
///
/// `MLFLOW_TRACKING_USERNAME` with `MLFLOW_TRACKING_PASSWORD`, or `MLFLOW_TRACKING_TOKEN`, as in MLflow's own client.
#[derive(Clone)]
pub struct Server {
    uri: String,
    authorization: Option<String>,
    secrets: Vec<String>,
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
        Ok(Self::with_credentials(uri, user, read("MLFLOW_TRACKING_TOKEN")))
    }

    fn with_credentials(uri: &str, user: Option<(String, String)>, token: Option<String>) -> Self {
        let uri = uri.trim_end_matches('/').to_owned();
        let (authorization, secrets) = match (user, token) {
            (Some((name, password)), _) => {
                let encoded = STANDARD.encode(format!("{name}:{password}"));
                (Some(format!("Basic {encoded}")), vec![encoded, password])
            }
            (None, Some(token)) => (Some(format!("Bearer {token}")), vec![token]),
            (None, None) => (None, vec![]),
        };
        Self { uri, authorization, secrets }
    }

    /// Checks that `uri` is an HTTP address without credentials.
    ///
    /// # Errors
    /// If it is not, or if it needs HTTPS in a build without it. No error contains credentials.
    pub fn check(uri: &str) -> Result<()> {
        if uri.contains('@') {
            bail!(
                "the URI contains a user or password; remove them and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD"
            );
        }
        if uri.contains(['?', '#']) {
            bail!("the URI must end with the host, port or path; remove the query");
        }
        let parsed = uri.parse::<Uri>().ok();
        let host = parsed.as_ref().and_then(Uri::host).filter(|host| !host.is_empty());
        match parsed.as_ref().and_then(Uri::scheme_str) {
            Some("http") if host.is_some() => Ok(()),
            Some("https") if host.is_some() && cfg!(feature = "https") => Ok(()),
            Some("https") if host.is_some() => {
                bail!(
                    "this program was built without the feature `https`; add it, or use http through a tunnel"
                )
            }
            _ => bail!("`{uri}` is not the address of an MLflow server; use http://HOST:PORT"),
        }
    }

    /// URI without a slash at its end.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Value of the header `Authorization`.
    pub(super) fn authorization(&self) -> Option<&str> {
        self.authorization.as_deref()
    }

    /// Whether the server is on this machine, where no proxy is used.
    pub(super) fn is_local(&self) -> bool {
        let host = self.uri.parse::<Uri>().ok().and_then(|uri| uri.host().map(str::to_owned));
        host.is_some_and(|host| host == "localhost" || host == "[::1]" || host.starts_with("127."))
    }

    /// Removes credentials from a text that a server has sent.
    pub(super) fn mask(&self, text: &str) -> String {
        self.secrets.iter().fold(text.to_owned(), |text, secret| text.replace(secret, "***"))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("uri", &self.uri).finish_non_exhaustive()
    }
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
        for good in ["http://localhost:5000", "http://127.0.0.1:5000/", "http://[::1]:5000/mlflow"] {
            Server::check(good).expect(good);
            assert!(Server::new(good).expect(good).is_local());
        }
    }

    #[test]
    fn credentials_are_sent_as_the_python_client_does_and_masked() {
        let user = Some(("me".to_owned(), "hunter2".to_owned()));
        let server = Server::with_credentials("http://host/", user, Some("token".into()));
        assert_eq!(server.authorization(), Some("Basic bWU6aHVudGVyMg=="));
        assert_eq!(server.mask("Basic bWU6aHVudGVyMg== of hunter2"), "Basic *** of ***");
        let server = Server::with_credentials("http://host/", None, Some("secret".into()));
        assert_eq!((server.authorization(), server.uri()), (Some("Bearer secret"), "http://host"));
        assert!(!format!("{server:?}").contains("secret"));
    }
}
