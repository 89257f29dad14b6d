//! The algorithms of all-reduce over TCP, their cost, and the choice between them.
//!
//! Costs are added up as in Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
//! operations in MPICH".

use super::{chain, chunks, flat, network::Network, schedule::Schedule, tree};
use crate::reduce::Reduction;

/// Maximum number of ranks that are connected in pairs.
///
/// With three such groups (all ranks, gradients, metrics) a process has 765 connections, within the usual limit
/// of 1024 open files, and 128 MiB of rings for chunks.
pub(super) const PAIRED: usize = 256;
/// Maximum size in bytes of the buffers of all ranks together, which rank 0 of a tree keeps.
const GATHERED: usize = 64 << 20;
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
            (false, false) => {
                let time = |algorithm: Algorithm| algorithm.time(&Network::TYPICAL, ranks, bytes);
                let tree = ranks * bytes <= GATHERED && time(Algorithm::Tree) < time(Algorithm::Chain);
                if tree { Algorithm::Tree } else { Algorithm::Chain }
            }
        }
    }

    /// Predicted time of an all-reduce of `bytes` bytes on `ranks` ranks, with one rank per machine.
    pub fn time(self, network: &Network, ranks: usize, bytes: usize) -> f64 {
        let Network { latency, overhead, per_byte, copy, reduce, .. } = *network;
        let (others, bytes) = (ranks.saturating_sub(1) as f64, bytes as f64);
        let levels = f64::from(ranks.next_power_of_two().trailing_zeros());
        // Per byte sent and received at the same time: the interface or the processor.
        let duplex = per_byte.max(2.0 * copy);
        let hop = latency + 2.0 * overhead;
        match self {
            Algorithm::Flat => latency + others * (2.0 * overhead + (duplex + reduce) * bytes),
            Algorithm::Tree => {
                2.0 * levels * hop + (others * (per_byte.max(copy) + reduce) + levels * duplex) * bytes
            }
            Algorithm::Chunks => {
                let chunk = bytes / (others + 1.0);
                2.0 * latency + 4.0 * others * overhead + others * (2.0 * duplex + reduce) * chunk
            }
            Algorithm::Chain => {
                let (piece, burst) = (bytes.min(chain::PIECE as f64), bytes.min(chain::BURST as f64));
                let fill = 2.0 * others * (hop + (per_byte + 2.0 * copy + reduce) * burst);
                // A rank between two others serves two links.
                let links = others.min(2.0);
                let processor = 2.0 * links * (overhead + copy * piece) + reduce * piece;
                let stage = (links * per_byte * piece).max(processor);
                fill + (bytes / piece.max(1.0) - 1.0).max(0.0) * stage
            }
        }
    }

    /// One rank's part of an all-reduce of `bytes` bytes.
    pub(super) fn schedule(self, reduction: Reduction, bytes: usize) -> Schedule<'static> {
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
