//! The cost of the algorithms by formulas, for a network and its machines.
//!
//! Costs are added up as in Thakur, Rabenseifner and Gropp 2005, "Optimization of collective communication
//! operations in MPICH". A message of N bytes takes α + βN (Hockney 1994, "The communication challenge for massively
//! parallel computers"), each of its ends is busy for o (Culler et al. 1993, "LogP"), and reducing N bytes takes γN.

use burn_ddp_comm::transport::tcp::{Algorithm, chain};

/// Most bytes that a rank of a chain forwards as one.
const BURST: usize = chain::RING * chain::PIECE;

/// Speed of a network and its machines. Times are in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// α: time from the end of sending to the beginning of receiving.
    pub latency: f64,
    /// o: processor time of sending or receiving one message.
    pub overhead: f64,
    /// β: time per byte of a network interface, in each direction.
    pub per_byte: f64,
    /// Processor time per byte of sending or receiving.
    pub copy: f64,
    /// γ: processor time per byte of reducing, for each input after the first.
    pub reduce: f64,
}

impl Network {
    /// 10 Gbit/s Ethernet, for which the library chooses algorithms.
    pub const TYPICAL: Network =
        Network { latency: 30e-6, overhead: 5e-6, per_byte: 0.8e-9, copy: 0.1e-9, reduce: 0.15e-9 };

    /// Predicted time of an all-reduce of `bytes` bytes on `ranks` ranks, with one rank per machine.
    pub fn time(&self, algorithm: Algorithm, ranks: usize, bytes: usize) -> f64 {
        let Network { latency, overhead, per_byte, copy, reduce } = *self;
        let (others, bytes) = (ranks.saturating_sub(1) as f64, bytes as f64);
        let levels = f64::from(ranks.next_power_of_two().trailing_zeros());
        // Per byte sent and received at the same time: the interface or the processor.
        let duplex = per_byte.max(2.0 * copy);
        let hop = latency + 2.0 * overhead;
        match algorithm {
            Algorithm::Flat => latency + others * (2.0 * overhead + (duplex + reduce) * bytes),
            Algorithm::Tree => {
                2.0 * levels * hop + (others * (per_byte.max(copy) + reduce) + levels * duplex) * bytes
            }
            Algorithm::Chunks => {
                let chunk = bytes / (others + 1.0);
                2.0 * latency + 4.0 * others * overhead + others * (2.0 * duplex + reduce) * chunk
            }
            Algorithm::Chain => {
                let (piece, burst) = (bytes.min(chain::PIECE as f64), bytes.min(BURST as f64));
                let fill = 2.0 * others * (hop + (per_byte + 2.0 * copy + reduce) * burst);
                // A rank between two others serves two links.
                let links = others.min(2.0);
                let processor = 2.0 * links * (overhead + copy * piece) + reduce * piece;
                let stage = (links * per_byte * piece).max(processor);
                fill + (bytes / piece.max(1.0) - 1.0).max(0.0) * stage
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trees_and_chains_are_chosen_where_they_are_faster() {
        for (ranks, bytes) in
            [257, 300, 400].into_iter().flat_map(|n| [64, 128, 192, 256].map(|k| (n, k << 10)))
        {
            if ranks * bytes > 64 << 20 {
                continue;
            }
            let [tree, chain] =
                [Algorithm::Tree, Algorithm::Chain].map(|one| Network::TYPICAL.time(one, ranks, bytes));
            let faster = if tree < chain { Algorithm::Tree } else { Algorithm::Chain };
            assert_eq!(Algorithm::choose(ranks, bytes), faster, "{ranks} ranks, {bytes} bytes");
        }
    }
}
