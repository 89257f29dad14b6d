//! The first failure of a group, in one shared word.

use crate::Error;

/// Why a group no longer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A deadline passed on rank `by`.
    TimedOut { by: usize },
    /// Rank `by` called abort or panicked within a call.
    Aborted { by: usize },
    /// Rank `rank` is gone.
    Lost { rank: usize },
    /// Rank `by` saw that ranks disagree.
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

    /// None for 0. A word that nobody could have written reads as an abort by rank 0.
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

    /// As rank `me` reports it.
    pub fn error(self, me: usize) -> Error {
        let (rank, reason) = match self {
            Failure::Aborted { by } if by == me => return Error::Aborted,
            Failure::TimedOut { by } => (by, "it gave up at its deadline, waiting for others"),
            Failure::Aborted { by } => (by, "it aborted"),
            Failure::Lost { rank } => (rank, "another rank found it gone"),
            Failure::Mismatch { by } => (by, "it saw that ranks make different calls"),
        };
        Error::PeerLost { rank, reason: reason.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survives_the_word() {
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
