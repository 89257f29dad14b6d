//! Errors of collectives and of the rendezvous.

use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Result of a collective operation.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Remedy for the usual cause of calls that differ.
pub(crate) const UNEVEN: &str =
    "if the ranks have different numbers of batches, shard the data with ShardedLoader";

/// An error of a collective operation or the rendezvous.
///
/// It is cloneable, because a failed group returns the first cause from every later call, and serialisable,
/// because ranks exchange it so that all of them report the same first cause.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An invalid world size, address, environment variable or argument.
    #[error("{0}")]
    Invalid(String),
    /// Ranks did not join before the deadline.
    #[error("rendezvous at {address}: after {seconds:.0} s still waiting for {absent}")]
    Rendezvous {
        /// Address of the rendezvous.
        address: String,
        /// Time waited, in seconds.
        seconds: f64,
        /// The missing ranks.
        absent: String,
    },
    /// A collective exceeded its time limit.
    #[error("{call} timed out after {seconds:.0} s: {absent}")]
    Timeout {
        /// The call, as `all_reduce #12 (4 x F32, Sum)`.
        call: String,
        /// Time waited, in seconds.
        seconds: f64,
        /// The missing ranks and their last calls.
        absent: String,
    },
    /// Ranks made different calls.
    #[error(
        "collective mismatch: rank {rank_a} called {call_a}, but rank {rank_b} called {call_b}; {}",
        UNEVEN
    )]
    Mismatch {
        /// A rank.
        rank_a: usize,
        /// Its call.
        call_a: String,
        /// Another rank.
        rank_b: usize,
        /// The other rank's call.
        call_b: String,
    },
    /// A rank has left or is lost.
    #[error("rank {rank} left the group: {reason}")]
    PeerLost {
        /// The lost rank.
        rank: usize,
        /// How the loss was detected.
        reason: String,
    },
    /// Replicas differ that should be equal.
    #[error("{when} the replicas differ: ranks {ranks:?} do not hold the same parameters as rank 0")]
    Diverged {
        /// When they were compared, such as `after epoch 3`.
        when: String,
        /// The ranks that differ from rank 0.
        ranks: Vec<usize>,
    },
    /// Ranks were started with different settings.
    #[error("the ranks have different settings: {}; give every rank the same", join(.differences))]
    SettingsDiffer {
        /// One entry for each setting that differs.
        differences: Vec<SettingDifference>,
    },
    /// A data set without samples.
    #[error("the {set} set has no samples; check where its data come from and how they are selected")]
    EmptyDataset {
        /// The data set: `training`, `validation` or `test`.
        set: String,
    },
    /// A module without trainable parameters.
    #[error(
        "the network has no trainable parameters; create it on a device with autodiff (Device::autodiff), or call \
         train() on a copy for inference"
    )]
    NotTrainable,
    /// A loss or gradient is NaN or infinite.
    #[error(
        "the {what} is {value} in step {step}{}; lower the learning rate or clip gradients, or continue with \
         --allow-nan (StepOptions::allow_non_finite)", at(.ranks)
    )]
    NonFinite {
        /// The quantity, such as `training loss`.
        what: String,
        /// Its value.
        value: String,
        /// Optimizer step, counted from 1.
        step: usize,
        /// The ranks on which it arose; empty if it arose in the sum over all ranks.
        ranks: Vec<usize>,
    },
    /// Gradients overflow f16 at the smallest loss scale.
    #[error(
        "precision f16: the gradients overflow although the loss scale has fallen to {scale}; lower the learning \
         rate, clip gradients, or use bf16 or f32"
    )]
    LossScale {
        /// The smallest loss scale.
        scale: f32,
    },
    /// A peer did not authenticate with the job's secret.
    #[error("{peer} did not authenticate with the job's secret: {reason}")]
    Unauthenticated {
        /// Address or rank of the peer.
        peer: String,
        /// The reason.
        reason: String,
    },
    /// An error of the operating system.
    #[error("{what}: {reason}")]
    Io {
        /// The attempted operation.
        what: String,
        /// The system's error message.
        reason: String,
    },
    /// A device failed, or its thread panicked.
    #[error("device {device}: {reason}")]
    Device {
        /// Name of the device, such as `cuda:1`.
        device: String,
        /// The failure.
        reason: String,
    },
    /// Another rank's device failed, or a closure that the rank ran for all.
    #[error("rank {rank} failed: {reason}")]
    Remote {
        /// The rank.
        rank: usize,
        /// The error.
        reason: String,
    },
    /// The group was aborted during the call.
    ///
    /// A transport returns it; the process group replaces it with the cause.
    #[error("the collective was aborted")]
    Aborted,
    /// The group failed before; contains the first cause.
    #[error("the process group failed earlier: {0}")]
    Poisoned(Box<Error>),
}

impl Error {
    /// An [`Error::Io`] for the operation `what`.
    pub fn io(what: impl Into<String>, source: &std::io::Error) -> Self {
        Error::Io { what: what.into(), reason: source.to_string() }
    }

    /// An [`Error::Timeout`] of `call` after `waited`.
    pub(crate) fn timeout(call: impl fmt::Display, waited: Duration, absent: impl Into<String>) -> Self {
        Error::Timeout { call: call.to_string(), seconds: waited.as_secs_f64(), absent: absent.into() }
    }

    /// Translates the ranks of a part of the world with `outer`.
    pub(crate) fn with_ranks(self, outer: impl Fn(usize) -> usize) -> Self {
        match self {
            Error::PeerLost { rank, reason } => Error::PeerLost { rank: outer(rank), reason },
            Error::Mismatch { rank_a, call_a, rank_b, call_b } => {
                Error::Mismatch { rank_a: outer(rank_a), call_a, rank_b: outer(rank_b), call_b }
            }
            other => other,
        }
    }

    /// The first cause: the error in [`Error::Poisoned`], or this error.
    pub fn cause(&self) -> &Error {
        match self {
            Error::Poisoned(cause) => cause.cause(),
            other => other,
        }
    }
}

/// A setting with different values on different ranks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SettingDifference {
    /// Name of the setting.
    pub name: String,
    /// Each value with its ranks, ordered by the first of them.
    pub values: Vec<(String, Vec<usize>)>,
}

impl SettingDifference {
    /// Maximum number of values in a message.
    const SHOWN: usize = 4;
    /// Maximum length of a value in a message.
    const WIDTH: usize = 60;
}

impl fmt::Display for SettingDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is ", self.name)?;
        for (index, (value, ranks)) in self.values.iter().take(Self::SHOWN).enumerate() {
            let and = if index > 0 { " and " } else { "" };
            let cut: String = value.chars().take(Self::WIDTH).collect();
            let dots = if cut.len() < value.len() { "…" } else { "" };
            write!(f, "{and}{cut}{dots} on {}", names(ranks))?;
        }
        match self.values.len().saturating_sub(Self::SHOWN) {
            0 => Ok(()),
            more => write!(f, " and {more} other values"),
        }
    }
}

/// Maximum number of ranges in a message.
const RANGES: usize = 16;

/// Formats ranks in ascending order, with a range for three or more in a row: `ranks 0, 2-5`.
///
/// Of many ranges, the first ones are listed and the ranks in the others are counted.
pub(crate) fn names(ranks: &[usize]) -> String {
    let mut runs = ranks.chunk_by(|a, b| a + 1 == *b);
    let mut list: Vec<String> = runs
        .by_ref()
        .take(RANGES)
        .flat_map(|run| match run {
            [first, _, .., last] => vec![format!("{first}-{last}")],
            few => few.iter().map(usize::to_string).collect(),
        })
        .collect();
    let more = runs.flatten().count();
    if more > 0 {
        list.push(format!("and {more} more"));
    }
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list.join(", "))
}

/// Formats the ranks on which an error arose, if known.
fn at(ranks: &[usize]) -> String {
    if ranks.is_empty() { String::new() } else { format!(" on {}", names(ranks)) }
}

fn join(differences: &[SettingDifference]) -> String {
    differences.iter().map(SettingDifference::to_string).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_in_a_row_are_a_range() {
        assert_eq!(names(&[3]), "rank 3");
        assert_eq!(names(&[0, 1]), "ranks 0, 1");
        assert_eq!(names(&[0, 2, 3, 4, 5, 7]), "ranks 0, 2-5, 7");
    }

    #[test]
    fn ranks_beyond_the_first_ranges_are_counted() {
        let odd: Vec<usize> = (0..2000).map(|i| 2 * i + 1).chain(5000..5100).collect();
        let text = names(&odd);
        assert!(text.starts_with("ranks 1, 3, 5, ") && text.ends_with(", 31, and 2084 more"), "{text}");
    }

    #[test]
    fn many_and_long_values_are_truncated() {
        let values = (0..6).map(|rank| (format!("{rank}").repeat(80), vec![rank])).collect();
        let shown = SettingDifference { name: "lr".into(), values }.to_string();
        assert!(shown.starts_with(&format!("lr is {}… on rank 0 and 111", "0".repeat(60))), "{shown}");
        assert!(shown.ends_with("… on rank 3 and 2 other values"), "{shown}");
    }
}
