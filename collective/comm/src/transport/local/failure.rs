//! The first failure of a group, in one shared word.

use crate::Error;

/// The first failure of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A deadline passed on rank `by`.
    TimedOut { by: usize },
    /// Rank `by` aborted, or panicked within a call.
    Aborted { by: usize },
    /// Rank `rank` is gone.
    Lost { rank: usize },
    /// Rank `by` found that the ranks' calls differ.
    Mismatch { by: usize },
}

impl Failure {
    /// Never 0.
    pub fn encode(self) -> u64 {
        let (kind, rank) = match self {
            Failure::TimedOut { by } => (1, by),
            Failure::Aborted { by } => (2, by),
            Failure::Lost { rank } => (3, rank),
            Failure::Mismatch { by } => (4, by),
        };
        kind << 32 | rank as u64
    }

    /// Decodes a word; `None` for 0. A word that no rank writes decodes as an abort by rank 0.
    pub fn decode(word: u64, world: usize) -> Option<Self> {
        let rank = (word & u64::from(u32::MAX)) as usize;
        Some(match word >> 32 {
            0 if word == 0 => return None,
            1 if rank < world => Failure::TimedOut { by: rank },
            2 if rank < world => Failure::Aborted { by: rank },
            3 if rank < world => Failure::Lost { rank },
            4 if rank < world => Failure::Mismatch { by: rank },
            _ => Failure::Aborted { by: 0 },
        })
    }

    /// The error that rank `me` reports.
    pub fn error(self, me: usize) -> Error {
        let (rank, reason) = match self {
            Failure::Aborted { by } if by == me => return Error::Aborted,
            Failure::TimedOut { by } => (by, "its deadline passed while it waited for others"),
            Failure::Aborted { by } => (by, "it aborted"),
            Failure::Lost { rank } => (rank, "another rank found that it is gone"),
            Failure::Mismatch { by } => (by, "it found that the ranks make different calls"),
        };
        Error::PeerLost { rank, reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_round_trip_through_the_word() {
        for failure in [
            Failure::TimedOut { by: 0 },
            Failure::Aborted { by: 7 },
            Failure::Lost { rank: 3 },
            Failure::Mismatch { by: 1 },
        ] {
            assert_eq!(Failure::decode(failure.encode(), 8), Some(failure));
        }
        assert_eq!(Failure::decode(0, 8), None);
        assert_eq!(Failure::decode(u64::MAX, 8), Some(Failure::Aborted { by: 0 }));
        assert_eq!(Failure::decode(Failure::Lost { rank: 8 }.encode(), 8), Some(Failure::Aborted { by: 0 }));
    }
}
