//! The server in rank 0's process: key-value store, and state of which ranks have joined, left or failed.
//!
//! One thread serves all connections ([`event_loop`]). A connection that has not authenticated and joined within two
//! seconds is closed and counted. The first error that reaches the server is the job's first cause and is sent to
//! every rank, including those that join later.

mod admission;
pub(crate) mod connection;
mod event_loop;
mod inquiry;
pub(crate) mod state;

use super::{Secret, frame::pair};
use crate::{Error, Result, sync::lock};
use event_loop::EventLoop;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use state::ServerState;
use std::{
    io,
    net::{TcpListener, TcpStream},
    sync::{Arc, Mutex},
};

/// Number of open files that are allowed besides the connections.
const OTHER_FILES: u64 = 512;

/// Rank 0's handle to its server, which runs until all ranks have disconnected.
pub(crate) struct Server {
    state: Arc<Mutex<ServerState>>,
}

impl Server {
    /// Serves `world` ranks of the job `job` on `listener`.
    ///
    /// # Errors
    /// [`Error::Io`] if the listener cannot be used or the thread cannot be started; [`Error::Invalid`] if the
    /// process may not have a connection to every rank.
    pub fn start(listener: TcpListener, world: usize, secret: Secret, job: Option<String>) -> Result<Self> {
        let failed = |e| Error::io("start the rendezvous server", &e);
        allow_connections(world)?;
        let address = listener.local_addr().map_err(failed)?;
        let state = Arc::new(Mutex::new(ServerState::new(world, address.to_string(), job)));
        let mut event_loop = EventLoop::new(state.clone(), secret).map_err(failed)?;
        event_loop.listen(listener).and_then(|()| event_loop.start()).map_err(failed)?;
        Ok(Server { state })
    }

    /// The ranks that have not joined, for messages.
    pub fn absent(&self) -> String {
        lock(&self.state).absent()
    }

    /// Stops listening once the connected ranks have disconnected, because rank 0 could not start. They receive `error`,
    /// and so do ranks that still join.
    pub fn close(&self, error: Error) {
        let mut state = lock(&self.state);
        state.closed = true;
        state.poison(error);
    }
}

/// Raises this process's limit of open files so that every rank can connect. The default is often 1024.
///
/// # Errors
/// [`Error::Invalid`] if the maximum is too small.
fn allow_connections(world: usize) -> Result<()> {
    let (limit, world) = (getrlimit(Resource::Nofile), world as u64);
    // `None` is no limit.
    let (current, maximum) = (limit.current.unwrap_or(u64::MAX), limit.maximum.unwrap_or(u64::MAX));
    if world > maximum {
        return Err(Error::Invalid(format!(
            "rank 0 needs a connection to each of {world} ranks, but may open only {maximum} files; raise the limit (ulimit -Hn)"
        )));
    }
    let wanted = maximum.min(world + OTHER_FILES);
    if current < wanted {
        // If it fails, the error of the rendezvous names the ranks that could not connect.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), ..limit });
    }
    Ok(())
}

/// Serves the ranks of one process. Returns their connections, in rank order.
///
/// # Errors
/// If a connection or the thread cannot be created.
pub(super) fn in_process(world: usize) -> io::Result<Vec<TcpStream>> {
    let state = Arc::new(Mutex::new(ServerState::new(world, "this process".into(), None)));
    let mut event_loop = EventLoop::new(state, Secret::random())?;
    let mut streams = Vec::new();
    for rank in 0..world {
        let (here, there) = pair()?;
        event_loop.add_rank(rank, here)?;
        streams.push(there);
    }
    event_loop.start()?;
    Ok(streams)
}

#[cfg(test)]
mod tests;
