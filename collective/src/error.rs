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
    Rendezvous {
        /// Where the ranks meet.
        address: String,
        /// How long this rank waited.
        seconds: f64,
        /// Who did not come, in words.
        absent: String,
    },
    /// A collective that passed its deadline.
    #[error("{call} timed out after {seconds:.0} s: {absent}")]
    Timeout {
        /// The call, as `all_reduce #12 (4 x F32, Sum)`.
        call: String,
        /// How long it waited.
        seconds: f64,
        /// Who did not come, and what they did last, in words.
        absent: String,
    },
    /// Ranks that disagree about what they are doing.
    #[error("collective mismatch: rank {rank_a} called {call_a}, but rank {rank_b} called {call_b}")]
    Mismatch {
        /// One rank,
        rank_a: usize,
        /// what it called,
        call_a: String,
        /// another one,
        rank_b: usize,
        /// and what that called at the same place.
        call_b: String,
    },
    /// A peer that is gone.
    #[error("rank {rank} left the group: {reason}")]
    PeerLost {
        /// Who is gone.
        rank: usize,
        /// How this was noticed.
        reason: String,
    },
    /// Replicas that should hold the same bits and do not.
    #[error("{when} the replicas differ: ranks {ranks:?} do not hold the same parameters as rank 0")]
    Diverged {
        /// When they were compared, such as `after epoch 3`.
        when: String,
        /// Those that are not as rank 0.
        ranks: Vec<usize>,
    },
    /// A connection that did not prove the job's secret.
    #[error("{peer} did not prove the job's secret: {reason}")]
    Unauthenticated {
        /// Its address, or which rank it is.
        peer: String,
        /// What was wrong with its proof.
        reason: String,
    },
    /// The operating system refused something.
    #[error("{what}: {reason}")]
    Io {
        /// What was attempted.
        what: String,
        /// What the operating system said.
        reason: String,
    },
    /// A device's thread failed or panicked.
    #[error("device {device}: {reason}")]
    Device {
        /// Its name, such as `cuda:1`.
        device: String,
        /// What happened on it.
        reason: String,
    },
    /// What a rank ran for all failed there.
    #[error("rank {rank} failed: {reason}")]
    Remote {
        /// The rank that ran it.
        rank: usize,
        /// Its error.
        reason: String,
    },
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
