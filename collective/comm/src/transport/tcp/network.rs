//! Speed of a network and its machines, as constants of a model.
//!
//! A message of N bytes takes α + βN (Hockney 1994, "The communication challenge for massively parallel
//! computers"), each of its ends is busy for o (Culler et al. 1993, "LogP"), and reducing N bytes takes γN.

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
    /// Consecutive ranks that share a network interface, and do not use it between each other.
    pub ranks_per_interface: usize,
    /// Consecutive ranks that share the cores of a machine.
    pub ranks_per_machine: usize,
    /// Cores per machine.
    pub cores: usize,
}

impl Network {
    /// 10 Gbit/s Ethernet with one rank per machine, for which algorithms are chosen.
    pub const TYPICAL: Network = Network {
        latency: 30e-6,
        overhead: 5e-6,
        per_byte: 0.8e-9,
        copy: 0.1e-9,
        reduce: 0.15e-9,
        ranks_per_interface: 1,
        ranks_per_machine: 1,
        cores: 1,
    };
}
