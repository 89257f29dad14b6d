//! The init method: how the ranks of a job find each other.

use crate::{Error, Result};
use std::{fmt, num::NonZeroU16, path::PathBuf, str::FromStr};

/// Init method of a job as a URL.
///
/// `env://`, `tcp://host:port`, `file:///path` or `mpi://`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InitMethod {
    /// Rank, world size and address from `RANK`, `WORLD_SIZE`, `MASTER_ADDR` (default 127.0.0.1) and
    /// `MASTER_PORT`, as torchrun and `burn-ddp launch` set them.
    Env,
    /// Rank 0 listens on this `host:port`; the others connect to it.
    Tcp(String),
    /// Rank 0 writes its address and a random secret into this file (mode 0600).
    ///
    /// All ranks must be on one machine, unless `MASTER_ADDR` is an address at which the others reach rank
    /// 0's machine.
    File(PathBuf),
    /// Rank and world size from the MPI library that started the processes, which also transmits rank 0's
    /// address and a random secret. Needs the feature `mpi`.
    Mpi,
}

impl FromStr for InitMethod {
    type Err = Error;

    fn from_str(url: &str) -> Result<Self> {
        let invalid = |why: &str| {
            Error::Invalid(format!(
                "init method {url:?}: {why}; use env://, tcp://host:port, file:///path or mpi://"
            ))
        };
        match url.split_once("://") {
            Some(("env", "")) => Ok(InitMethod::Env),
            Some(("env", _)) => Err(invalid("env:// takes no address")),
            Some(("tcp", address)) => {
                let (host, port) = address.rsplit_once(':').ok_or_else(|| invalid("the port is missing"))?;
                if host.is_empty() {
                    return Err(invalid("the host is missing"));
                }
                port.parse::<NonZeroU16>()
                    .map_err(|_| invalid("the port is not a number from 1 to 65535"))?;
                Ok(InitMethod::Tcp(address.into()))
            }
            Some(("file", path)) if path.starts_with('/') => Ok(InitMethod::File(path.into())),
            Some(("file", _)) => Err(invalid("the path must be absolute")),
            Some(("mpi", "")) => Ok(InitMethod::Mpi),
            _ => Err(invalid("unknown scheme")),
        }
    }
}

impl fmt::Display for InitMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InitMethod::Env => f.write_str("env://"),
            InitMethod::Tcp(address) => write!(f, "tcp://{address}"),
            InitMethod::File(path) => write!(f, "file://{}", path.display()),
            InitMethod::Mpi => f.write_str("mpi://"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_round_trip() {
        for url in ["env://", "tcp://localhost:29500", "tcp://[::1]:1", "file:///run/job", "mpi://"] {
            assert_eq!(url.parse::<InitMethod>().unwrap().to_string(), url);
        }
    }

    #[test]
    fn invalid_urls_are_errors_that_name_url_and_reason() {
        for (url, fault) in [
            ("", "unknown scheme"),
            ("http://x", "unknown scheme"),
            ("env://x", "takes no address"),
            ("tcp://x", "port is missing"),
            ("tcp://:1", "host is missing"),
            ("tcp://x:99999", "not a number"),
            ("tcp://x:0", "not a number"),
            ("file://x", "absolute"),
        ] {
            let error = url.parse::<InitMethod>().unwrap_err().to_string();
            assert!(error.contains(&format!("{url:?}")) && error.contains(fault), "{error}");
        }
    }
}
