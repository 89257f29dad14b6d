//! The algorithms of all-reduce over TCP, and the choice between them.

use super::{chain, chunks, flat, schedule::Schedule, tree};
use crate::reduce::Reduction;

/// Maximum number of ranks that are connected in pairs.
///
/// With three such groups (all ranks, gradients, metrics) a process has 765 connections, within the usual limit
/// of 1024 open files, and 128 MiB of rings for chunks.
pub(super) const PAIRED: usize = 256;
/// Maximum size in bytes of the buffers of all ranks together, which rank 0 of a tree keeps.
const GATHERED: usize = 64 << 20;
/// Up to this many bytes, a tree of more than [`PAIRED`] ranks is faster than a chain, by the formulas of the example
/// `simulate_all_reduce` for 10 Gbit/s.
const TREE: usize = 156 << 10;
/// Up to this many bytes and ranks, messages are sent flat.
pub(super) const SMALL: usize = 32 << 10;
pub(super) const FEW: usize = 8;

/// An algorithm of all-reduce over TCP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    /// Every rank sends its buffer to every other.
    Flat,
    /// Gathered to rank 0 over a binomial tree, reduced there, and broadcast back.
    Tree,
    /// Rank c reduces the c-th chunk of all ranks.
    Chunks,
    /// Reduced from rank to rank, and sent back from the last rank.
    Chain,
}

impl Algorithm {
    /// The algorithm for buffers of `bytes` bytes on `ranks` ranks; equal on all ranks.
    pub fn choose(ranks: usize, bytes: usize) -> Self {
        match (ranks <= PAIRED, bytes <= SMALL) {
            (_, true) if ranks <= FEW => Algorithm::Flat,
            (_, true) => Algorithm::Tree,
            (true, false) => Algorithm::Chunks,
            (false, false) if bytes <= TREE && ranks * bytes <= GATHERED => Algorithm::Tree,
            (false, false) => Algorithm::Chain,
        }
    }

    /// One rank's part of an all-reduce of `bytes` bytes.
    #[doc(hidden)]
    pub fn schedule(self, reduction: Reduction, bytes: usize) -> Schedule<'static> {
        match self {
            Algorithm::Flat => flat::reduce(reduction, bytes, None),
            Algorithm::Tree => tree::reduce(reduction, bytes),
            Algorithm::Chunks => chunks::reduce(reduction, bytes, |_| true),
            Algorithm::Chain => chain::reduce(reduction, bytes),
        }
    }
}

names! { Algorithm, "unknown algorithm {:?}; choose flat, tree, chunks or chain":
    Flat = "flat", Tree = "tree", Chunks = "chunks", Chain = "chain"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_choice_depends_on_ranks_and_bytes() {
        let table = [
            (2, 4, Algorithm::Flat),
            (8, SMALL, Algorithm::Flat),
            (9, 4, Algorithm::Tree),
            (2, SMALL + 1, Algorithm::Chunks),
            (PAIRED, 100 << 20, Algorithm::Chunks),
            (PAIRED + 1, 64 << 10, Algorithm::Tree),
            (PAIRED + 1, 4 << 20, Algorithm::Chain),
            (10_000, 4, Algorithm::Tree),
            (10_000, 100 << 20, Algorithm::Chain),
        ];
        for (ranks, bytes, expected) in table {
            assert_eq!(Algorithm::choose(ranks, bytes), expected, "{ranks} ranks, {bytes} bytes");
        }
    }
}
