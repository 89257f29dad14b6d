//! Simulation of all-reduces in virtual time, with the schedules that the transport executes.
//!
//! A rank runs when data have arrived and a core is free. It receives from and sends to each peer at most once
//! before it looks again, as the transport does. Network interfaces transfer one segment after another, in the
//! order in which they were sent; see [`Network`] for what each takes. Socket buffers are unlimited, and nothing
//! else uses the machines.

use crate::network::Network;
use burn_ddp_comm::{
    DType, ReduceOp, World,
    reduce::Reduction,
    transport::tcp::{
        Algorithm,
        schedule::{Arithmetic, Duplex, HEADER, Part, Progress, Schedule, Transfer},
    },
};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    ops::Range,
};

/// Result of a simulated all-reduce.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Simulated {
    /// Time until the last rank is done, in seconds.
    pub seconds: f64,
    /// Messages of all ranks.
    pub messages: usize,
    /// Bytes of all messages, including headers.
    pub bytes: usize,
    /// Largest number of connections of a rank.
    pub connections: usize,
    /// Largest memory of a rank in addition to its buffer, in bytes.
    pub scratch: usize,
}

/// What consecutive ranks share.
#[derive(Clone, Copy, Debug)]
pub struct Placement {
    /// Ranks that share a network interface, and do not use it between each other.
    pub ranks_per_interface: usize,
    /// Ranks that share the cores of a machine.
    pub ranks_per_machine: usize,
    /// Cores per machine.
    pub cores: usize,
}

impl Placement {
    /// One rank per machine.
    pub const SEPARATE: Placement = Placement { ranks_per_interface: 1, ranks_per_machine: 1, cores: 1 };
}

/// Simulates an all-reduce (sum) of `bytes` bytes of f32 on `ranks` ranks.
///
/// # Panics
/// If ranks wait for each other in a circle, which is a defect of the algorithm.
pub fn simulate(
    network: &Network,
    placement: Placement,
    algorithm: Algorithm,
    ranks: usize,
    bytes: usize,
) -> Simulated {
    let rank = |rank| {
        let world = World { rank, size: ranks };
        let reduction = Reduction { dtype: DType::F32, op: ReduceOp::Sum, world };
        Rank::new(algorithm.schedule(reduction, bytes / 4 * 4))
    };
    let ranks: Vec<_> = (0..ranks).map(rank).collect();
    let result = Simulated {
        connections: ranks.iter().map(|rank| rank.duplexes.len()).max().unwrap_or(0),
        scratch: ranks.iter().map(|rank| rank.scratch).max().unwrap_or(0),
        ..Simulated::default()
    };
    let machines = ranks.len().div_ceil(placement.ranks_per_machine.max(1));
    let interfaces = ranks.len().div_ceil(placement.ranks_per_interface.max(1));
    Simulation {
        network,
        placement,
        ranks,
        cores: vec![vec![0.0; placement.cores.max(1)]; machines],
        interfaces: vec![Interface::default(); interfaces],
        events: BinaryHeap::new(),
        pushed: 0,
        result,
    }
    .run()
}

/// Number of bytes that `transfer` may transfer now.
fn allowed(transfer: &Transfer) -> usize {
    let Some(open) = transfer.open else { return 0 };
    let parts = transfer.parts.get(transfer.moved..open).unwrap_or_default();
    HEADER - transfer.head + parts.iter().map(Part::bytes).sum::<usize>().saturating_sub(transfer.skip)
}

/// Bytes that are forwarded as one: what Linux hands to a network interface at a time, at most.
const SEGMENT: usize = 64 << 10;

struct Rank {
    scratch: usize,
    duplexes: Vec<Duplex>,
    progress: Progress<'static>,
    /// Bytes that have arrived and wait to be received, by duplex.
    waiting: Vec<usize>,
    /// Indices of the duplexes by peer.
    index: HashMap<usize, usize>,
    /// When this rank is done with what it has begun.
    free: f64,
    /// Whether a wake-up is among the events.
    woken: bool,
}

impl Rank {
    fn new(schedule: Schedule<'static>) -> Self {
        let Schedule { scratch, duplexes, progress } = schedule;
        let index = duplexes.iter().enumerate().map(|(index, duplex)| (duplex.peer, index)).collect();
        let waiting = vec![0; duplexes.len()];
        Rank { scratch, waiting, duplexes, progress, index, free: 0.0, woken: false }
    }
}

/// When the two directions of an interface are free.
#[derive(Clone, Default)]
struct Interface {
    sending: f64,
    receiving: f64,
}

/// Counts the bytes that are reduced.
struct Meter(usize);

impl Arithmetic for Meter {
    fn reduce(&mut self, reduction: Reduction, _: &dyn Fn(usize) -> Part, out: Part) {
        self.0 += (reduction.world.size - 1) * out.bytes();
    }

    fn fold(&mut self, _: Reduction, own: Range<usize>, _: Range<usize>) {
        self.0 += own.len();
    }
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// The first byte reaches the receiver's network interface.
    Landing {
        from: usize,
        to: usize,
        bytes: usize,
    },
    /// The last byte is there.
    Arrival {
        from: usize,
        to: usize,
        bytes: usize,
    },
    Wake {
        rank: usize,
    },
}

struct Simulation<'a> {
    network: &'a Network,
    placement: Placement,
    ranks: Vec<Rank>,
    /// When the cores of each machine are free.
    cores: Vec<Vec<f64>>,
    interfaces: Vec<Interface>,
    /// By time in whole picoseconds, which have an order, and number.
    events: BinaryHeap<Reverse<(u64, usize, Event)>>,
    pushed: usize,
    result: Simulated,
}

impl Simulation<'_> {
    fn run(mut self) -> Simulated {
        (0..self.ranks.len()).for_each(|rank| self.push(0.0, Event::Wake { rank }));
        while let Some(Reverse((time, _, event))) = self.events.pop() {
            let time = time as f64 * 1e-12;
            match event {
                Event::Landing { from, to, bytes } => {
                    let interface = self.interface(to);
                    let receiving = &mut self.interfaces[interface].receiving;
                    *receiving = time.max(*receiving) + bytes as f64 * self.network.per_byte;
                    let end = *receiving;
                    self.push(end, Event::Arrival { from, to, bytes });
                }
                Event::Arrival { from, to, bytes } => {
                    let rank = &mut self.ranks[to];
                    let index = rank.index[&from];
                    rank.waiting[index] += bytes;
                    if !std::mem::replace(&mut rank.woken, true) {
                        self.push(time, Event::Wake { rank: to });
                    }
                }
                Event::Wake { rank } => self.wake(rank, time),
            }
        }
        let complete = |rank: &Rank| rank.duplexes.iter().all(Duplex::complete);
        assert!(self.ranks.iter().all(complete), "ranks wait for each other");
        self.result.seconds = self.ranks.iter().map(|rank| rank.free).fold(0.0, f64::max);
        self.result
    }

    fn push(&mut self, time: f64, event: Event) {
        self.events.push(Reverse(((time * 1e12).round() as u64, self.pushed, event)));
        self.pushed += 1;
    }

    fn interface(&self, rank: usize) -> usize {
        rank / self.placement.ranks_per_interface.max(1)
    }

    /// Receives, reduces and sends what is possible, or waits until the rank and a core are free.
    fn wake(&mut self, rank: usize, time: f64) {
        let network = self.network;
        let machine = rank / self.placement.ranks_per_machine.max(1);
        let cores = self.cores[machine].iter().enumerate();
        let core = cores.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(core, _)| core);
        let free = self.ranks[rank].free.max(self.cores[machine][core]);
        // Half a picosecond is rounding.
        if free > time + 1e-12 {
            return self.push(free, Event::Wake { rank });
        }
        let Rank { duplexes, waiting, progress, woken, .. } = &mut self.ranks[rank];
        *woken = false;
        let mut busy = 0.0;
        for (duplex, waiting) in duplexes.iter_mut().zip(waiting) {
            let bytes = allowed(&duplex.recv).min(*waiting);
            duplex.recv.advance(bytes);
            *waiting -= bytes;
            busy += if bytes > 0 { network.overhead + bytes as f64 * network.copy } else { 0.0 };
        }
        let mut meter = Meter(0);
        progress(&mut meter, duplexes);
        busy += meter.0 as f64 * network.reduce;
        for index in 0..self.ranks[rank].duplexes.len() {
            let duplex = &mut self.ranks[rank].duplexes[index];
            let (bytes, to) = (allowed(&duplex.send), duplex.peer);
            duplex.send.advance(bytes);
            if bytes > 0 {
                busy += network.overhead + bytes as f64 * network.copy;
                self.send(time + busy, rank, to, bytes);
            }
        }
        self.ranks[rank].free = time + busy;
        self.cores[machine][core] = time + busy;
        // What was received or sent may allow more.
        if busy > 0.0 {
            self.ranks[rank].woken = true;
            self.push(time + busy, Event::Wake { rank });
        }
    }

    fn send(&mut self, time: f64, from: usize, to: usize, bytes: usize) {
        let network = self.network;
        let [here, there] = [from, to].map(|rank| self.interface(rank));
        self.result.messages += 1;
        self.result.bytes += bytes;
        for at in (0..bytes).step_by(SEGMENT) {
            let bytes = SEGMENT.min(bytes - at);
            if here == there {
                self.push(time + network.latency, Event::Arrival { from, to, bytes });
                continue;
            }
            let sending = &mut self.interfaces[here].sending;
            let begin = time.max(*sending);
            *sending = begin + bytes as f64 * network.per_byte;
            self.push(begin + network.latency, Event::Landing { from, to, bytes });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An all-reduce between separate machines.
    fn simulated(algorithm: Algorithm, ranks: usize, bytes: usize) -> Simulated {
        simulate(&Network::TYPICAL, Placement::SEPARATE, algorithm, ranks, bytes)
    }

    /// Payload bytes of all ranks together, by the formulas of the book's chapter.
    fn payload(algorithm: Algorithm, ranks: usize, bytes: usize) -> usize {
        let below = |rank: usize| if rank == 0 { 0 } else { (1 << rank.trailing_zeros()).min(ranks - rank) };
        match algorithm {
            Algorithm::Flat => ranks * (ranks - 1) * bytes,
            Algorithm::Tree => (0..ranks).map(below).sum::<usize>() * bytes + (ranks - 1) * bytes,
            Algorithm::Chunks | Algorithm::Chain => 2 * (ranks - 1) * bytes,
        }
    }

    #[test]
    fn all_algorithms_end_and_send_the_documented_bytes() {
        for ranks in [1, 2, 3, 4, 7, 16, 33] {
            for bytes in [0, 4, 4 * ranks, 100_000, 1_000_004] {
                for algorithm in Algorithm::ALL {
                    let result = simulated(algorithm, ranks, bytes);
                    let links = match algorithm {
                        Algorithm::Flat | Algorithm::Chunks => ranks * (ranks - 1) / 2,
                        Algorithm::Tree | Algorithm::Chain => ranks - 1,
                    };
                    let expected = payload(algorithm, ranks, bytes) + 2 * links * HEADER;
                    assert_eq!(result.bytes, expected, "{algorithm}, {ranks} ranks, {bytes} bytes");
                    assert!(result.messages >= 2 * links && (ranks == 1 || result.seconds > 0.0));
                }
                let chain = simulated(Algorithm::Chain, ranks, bytes);
                assert!(chain.connections <= 2 && chain.scratch <= 128 << 10, "{chain:?}");
            }
        }
    }

    #[test]
    fn formulas_agree_with_the_simulation() {
        for (ranks, bytes) in [2, 8, 100].into_iter().flat_map(|n| [4, 4 << 10, 256 << 10].map(|b| (n, b))) {
            for algorithm in Algorithm::ALL {
                let simulated = simulated(algorithm, ranks, bytes).seconds;
                let ratio = Network::TYPICAL.time(algorithm, ranks, bytes) / simulated;
                assert!((0.6..1.7).contains(&ratio), "{algorithm}, {ranks} ranks, {bytes} bytes: {ratio}");
            }
        }
    }
}
