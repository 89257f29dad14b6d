//! Rendezvous and control plane: how the ranks of a job find each other and detect failures.
//!
//! Rank 0 hosts a server ([`server`]) with a key-value store and the control plane. Every rank, rank 0
//! included, keeps one connection to it ([`control`]). The server tracks which ranks have joined, left or
//! failed. The first failure is the cause that all ranks report. Tensor data does not pass through it.
//! Ranks that are threads of one process connect to the same server through pairs of sockets.
//!
//! Connections are authenticated before any data is accepted ([`secret`]).

pub mod address;
pub mod channel;
pub(crate) mod control;
mod control_client;
pub(crate) mod diagnosis;
pub(crate) mod frame;
pub mod listener;
mod method;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod wait;
pub(crate) mod wire;

pub use method::InitMethod;
pub use secret::{SECRET, Secret};

use crate::Error;
use rustix::net::sockopt;
use std::{
    io,
    net::TcpStream,
    os::fd::AsFd,
    time::{Duration, Instant},
};
use wire::{Place, Stall};

/// A group as the control plane sees it.
pub(crate) trait GroupProbe: Send + Sync {
    /// This rank's position relative to the collective `seq`, or to that message between two world ranks.
    fn place(&self, seq: u64, message: Option<(usize, usize)>) -> Place;
    /// A waiting call for which an inquiry is due.
    fn stalled(&self) -> Option<Stall>;
    /// Whether the group was destroyed on this rank.
    fn closed(&self) -> bool;
    /// Fails the waiting call after a failure of the job. Never waits for another rank or a disk.
    fn abort(&self);
    /// Writes a flight record, unless the call that was woken does.
    fn record(&self, cause: &Error);
}

/// Time that a report of a lost peer waits for the peer's own report, if that is still connected.
pub(crate) const PEER_LOSS_GRACE: Duration = Duration::from_millis(400);

/// The instant `timeout` from now, at most a year ahead, so that the sum does not overflow.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// This machine's name, for messages.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed host".into() } else { name.trim().into() }
}

/// Disables Nagle's algorithm and makes the kernel detect the loss of the peer's machine within about 5 s.
///
/// A stopped process still has a kernel that answers, so that a slow rank is never mistaken for a lost one. A
/// process that ends closes its sockets, which is detected at once.
pub(crate) fn tune_control(stream: impl AsFd) -> io::Result<()> {
    sockopt::set_tcp_nodelay(&stream, true)?;
    sockopt::set_socket_keepalive(&stream, true)?;
    sockopt::set_tcp_keepidle(&stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(&stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(&stream, 5)?;
    // Covers unacknowledged data, for which keep-alive does not run.
    #[cfg(target_os = "linux")]
    sockopt::set_tcp_user_timeout(&stream, 5_000)?;
    Ok(())
}

/// Disables Nagle's algorithm. Lost peers are detected on the control connection.
pub(crate) fn tune_data(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
