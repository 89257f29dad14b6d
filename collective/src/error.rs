//! What can go wrong between ranks, in words a user can act on.

use serde::{Deserialize, Serialize};

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a collective operation failed. Cloneable, because a poisoned group answers every later
/// call with the first cause.
///
/// It travels between ranks as JSON, so that all of them report the same first cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A world, address, environment variable or argument that cannot work.
    #[error("{0}")]
    Invalid(String),
    /// Ranks that did not arrive at the rendezvous before the deadline.
    #[error("rendezvous at {address}: after {seconds:.0} s still waiting for {absent}")]
    Rendezvous { address: String, seconds: f64, absent: String },
    /// A collective that passed its deadline.
    #[error("{call} timed out after {seconds:.0} s: {absent}")]
    Timeout { call: String, seconds: f64, absent: String },
    /// Ranks that disagree about what they are doing.
    #[error("collective mismatch: rank {rank_a} called {call_a}, but rank {rank_b} called {call_b}")]
    Mismatch { rank_a: usize, call_a: String, rank_b: usize, call_b: String },
    /// A peer that is gone.
    #[error("rank {rank} left the group: {reason}")]
    PeerLost { rank: usize, reason: String },
    /// Replicas that should hold the same bits and do not.
    #[error("{when} the replicas differ: ranks {ranks:?} do not hold the same parameters as rank 0")]
    Diverged { when: String, ranks: Vec<usize> },
    /// A connection that did not prove the job's secret.
    #[error("{peer} did not prove the job's secret: {reason}")]
    Unauthenticated { peer: String, reason: String },
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    Io { what: String, reason: String },
    /// A device's thread failed or panicked.
    #[error("device {device}: {reason}")]
    Device { device: String, reason: String },
    /// What a rank ran for all failed there.
    #[error("rank {rank} failed: {reason}")]
    Remote { rank: usize, reason: String },
    /// The group was aborted while this call waited. A transport returns it; the process group
    /// replaces it with the cause.
    #[error("the collective was aborted")]
    Aborted,
    /// The group, or the replicas of a process, failed before; this is the first cause.
    #[error("the process group failed earlier: {0}")]
    Poisoned(Box<Error>),
}

impl Error {
    /// An [`Error::Io`] that says what was attempted.
    pub fn io(what: impl Into<String>, source: &std::io::Error) -> Self {
        Error::Io { what: what.into(), reason: source.to_string() }
    }

    /// The first cause: what [`Error::Poisoned`] carries, or this error itself.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Poisoned(cause) => cause.cause(),
            other => other,
        }
    }
}
