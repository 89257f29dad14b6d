//! How the ranks of a job find each other and stay in touch.
//!
//! Rank 0 hosts a small server ([`server`]): a key-value store with deadlines and the control plane.
//! Every rank, rank 0 included, keeps one connection to it ([`control`]). The server learns there
//! who has come, who has left and who has failed, and tells everyone; the first failure is *the*
//! cause that all ranks report. No tensor data passes here.
//!
//! Every connection first proves that both ends know the job's secret ([`secret`]).

mod activity;
pub(crate) mod callers;
pub mod channel;
pub(crate) mod control;
pub(crate) mod deadlock;
pub(crate) mod frame;
pub(crate) mod hall;
mod link;
mod method;
pub(crate) mod plan;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod store;
pub(crate) mod verdict;
pub(crate) mod wait;
pub(crate) mod wire;

pub use method::InitMethod;
pub(crate) use plan::Plan;
pub use plan::{MASTER_FD, SECRET};
pub use secret::Secret;

use crate::Error;
use callers::Callers;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;
use std::{
    fmt, io,
    net::{TcpListener, TcpStream},
    sync::{Arc, atomic::AtomicU64},
    thread,
    time::{Duration, Instant},
};
use wire::{PendingCall, Place, Stall};

/// A group as its arbiter sees it.
pub(crate) trait Watched: Send + Sync {
    fn id(&self) -> u64;
    /// Number of the last collective; outlives the group.
    fn counter(&self) -> Arc<AtomicU64>;
    /// Where this rank is, seen from the collective `seq` or from a message between two ranks.
    fn place(&self, seq: Option<u64>) -> Place;
    /// A waiting call for which an inquiry is due; `urgent` if this process was asked to stop.
    fn stalled(&self, urgent: bool) -> Option<Stall>;
    /// The call in progress on this rank.
    fn pending(&self) -> Option<PendingCall>;
    /// Numbers of the last messages, by group, sender and receiver.
    fn messages(&self) -> Vec<(u64, usize, usize, u64)>;
    /// Whether the group was destroyed on this rank.
    fn closed(&self) -> bool;
    /// Wakes the call that waits, because the job has failed. Never waits for another rank or a disk.
    fn abort(&self);
    /// Leaves a record of the failure behind, unless the call that was woken does.
    fn record(&self, cause: &Error);
}

/// Ends the calls of all groups. Records are written afterwards: no call waits for a disk.
pub(crate) fn abort_all<'a>(groups: impl Iterator<Item = &'a Arc<dyn Watched>> + Clone, cause: &Error) {
    groups.clone().for_each(|group| group.abort());
    groups.for_each(|group| group.record(cause));
}

/// Who decides for a rank what the first cause of a failure was.
pub(crate) trait Arbiter: Send + Sync + fmt::Debug {
    /// The job's first cause of failure, if it has failed.
    fn cause(&self) -> Option<Error>;
    /// Reports this rank's failure; returns what was first.
    fn fail(&self, error: Error) -> Error;
    /// Reports a call whose deadline has passed; returns the verdict, or `error`.
    fn expire(&self, stall: Stall, error: Error) -> Error;
    /// Lets a group hear of failures.
    fn watch(&self, group: &Arc<dyn Watched>);
    /// The calling threads of this rank.
    fn callers(&self) -> &Arc<Callers>;
    /// Leaves the job if all groups of this rank are closed.
    fn group_closed(&self);
    /// Announces a clean exit. Idempotent.
    fn goodbye(&self);
}

/// How long a rank's word that another one is gone waits for a better explanation, where that
/// other one is still connected.
pub(crate) const HEARSAY: Duration = Duration::from_millis(400);

/// The instant `timeout` from now; a far one for a time that no clock can hold.
pub(crate) fn deadline(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);
    Instant::now() + timeout.min(YEAR)
}

/// The reason for which a rank that has said goodbye is missed.
pub(crate) fn finished(reason: &str) -> String {
    format!("it had finished or destroyed its group ({reason})")
}

/// This machine's name, for messages.
pub fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if name.trim().is_empty() { "an unnamed host".into() } else { name.trim().into() }
}

/// No delay for small messages, and let the kernel notice within about 5 s that the other
/// *machine* is gone. A stopped process still has a kernel that answers, so this never mistakes a
/// slow rank for a dead one. (A dead *process* closes its sockets, which shows at once.)
pub(crate) fn tune_control(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    // Covers what was sent and is not acknowledged, where keep-alive does not run.
    sockopt::set_tcp_user_timeout(stream, 5_000)?;
    Ok(())
}

/// No delay for small messages. What is lost on the way shows in the control connection.
pub(crate) fn tune_data(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}

/// Lets `listener` not block, and hold more connections than usual: hundreds of ranks dial at once.
pub(crate) fn tune_listener(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    rustix::net::listen(listener, 4096)?;
    Ok(())
}

/// The next connection of a non-blocking listener, if one comes within a tenth of a second.
pub(crate) fn accept(listener: &TcpListener) -> Option<TcpStream> {
    let pause = Duration::from_millis(100);
    let mut ready = [PollFd::new(listener, PollFlags::IN)];
    // An error here shows again, as one of `accept`.
    let _ = poll(&mut ready, Timespec::try_from(pause).ok().as_ref());
    match listener.accept() {
        Ok((stream, _)) => Some(stream),
        Err(error) if secret::retry(&error) => None,
        // Such as too many open files: the listener stays readable, and this must not spin.
        Err(_) => {
            thread::sleep(pause);
            None
        }
    }
}
