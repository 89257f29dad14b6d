//! Prediction of the time of an all-reduce over TCP, and its measurement.
//!
//! ```text
//! cargo run --release -p burn-ddp-comm --example simulate_all_reduce -- predict 8,64,1000 4096,26214400
//! cargo run --release -p burn-ddp-comm --example simulate_all_reduce -- predict 16 26214400 gbits=0.1
//! cargo run --release -p burn-ddp-comm --example simulate_all_reduce -- measure chain 4096,26214400
//! ```
//!
//! `predict RANKS BYTES [KEY=VALUE …]` prints the simulated time of each algorithm in ms. Where the simulation would
//! take minutes, it prints the result of a formula, marked with `~`. `*` is the library's choice. `by
//! machine` sums within machines of `per_machine` ranks first, at `local_ns` per byte. Other keys: `latency_us`,
//! `overhead_us`, `gbits`, `copy_ns`, `reduce_ns`, `ranks_per_interface`, `ranks_per_machine`, `cores`.
//!
//! `measure ALGORITHM BYTES [SECONDS]` is one rank of a group given by `RANK`, `WORLD_SIZE`, `MASTER_ADDR` and
//! `MASTER_PORT`. Rank 0 prints algorithm, ranks, bytes, median and minimum in ms, and number of rounds.
//! `scripts/schedules` starts the ranks.

mod network;
mod simulation;

use burn_ddp_comm::{
    InitMethod, Options, ProcessGroup, ReduceOp,
    transport::{Transport, tcp::Algorithm},
};
use network::Network;
use simulation::{Placement, simulate};
use std::{env, error::Error, time::Instant};

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["predict", ranks, bytes, settings @ ..] => predict(&list(ranks)?, &list(bytes)?, settings),
        ["measure", algorithm, bytes] => measure(algorithm.parse()?, &list(bytes)?, 1.0),
        ["measure", algorithm, bytes, seconds] => {
            measure(algorithm.parse()?, &list(bytes)?, seconds.parse()?)
        }
        _ => Err("usage: predict RANKS BYTES [KEY=VALUE …] | measure ALGORITHM BYTES [SECONDS]".into()),
    }
}

fn list(text: &str) -> Outcome<Vec<usize>> {
    Ok(text.split(',').map(str::parse).collect::<Result<_, _>>()?)
}

/// A network, and machines of which each sums its ranks' buffers first.
struct Cluster {
    network: Network,
    placement: Placement,
    per_machine: usize,
    /// Time per byte of a reduction and a broadcast within a machine, in seconds.
    local: f64,
}

impl Cluster {
    fn new(settings: &[&str]) -> Outcome<Self> {
        let mut cluster = Cluster {
            network: Network::TYPICAL,
            placement: Placement::SEPARATE,
            per_machine: 8,
            local: 0.6e-9,
        };
        for setting in settings {
            let (key, value) = setting.split_once('=').ok_or_else(|| format!("{setting}: use KEY=VALUE"))?;
            let number: f64 = value.parse()?;
            let Cluster { network, placement, .. } = &mut cluster;
            match key {
                "latency_us" => network.latency = number * 1e-6,
                "overhead_us" => network.overhead = number * 1e-6,
                "gbits" => network.per_byte = 8e-9 / number,
                "copy_ns" => network.copy = number * 1e-9,
                "reduce_ns" => network.reduce = number * 1e-9,
                "ranks_per_interface" => placement.ranks_per_interface = number as usize,
                "ranks_per_machine" => placement.ranks_per_machine = number as usize,
                "cores" => placement.cores = number as usize,
                "per_machine" => cluster.per_machine = number as usize,
                "local_ns" => cluster.local = number * 1e-9,
                _ => return Err(format!("unknown key {key}").into()),
            }
        }
        Ok(cluster)
    }

    /// Time in seconds, and whether it was simulated.
    fn time(&self, algorithm: Algorithm, ranks: usize, bytes: usize) -> (f64, bool) {
        // About the number of events, and of duplexes that each of them inspects.
        let segments = ranks * bytes.div_ceil(16 << 10).max(ranks);
        let work = match algorithm {
            Algorithm::Flat => ranks * segments,
            Algorithm::Chunks => ranks * ranks * ranks / 8,
            Algorithm::Tree | Algorithm::Chain => segments,
        };
        match work <= 2_100_000 {
            true => (simulate(&self.network, self.placement, algorithm, ranks, bytes).seconds, true),
            false => (self.network.time(algorithm, ranks, bytes), false),
        }
    }

    fn time_by_machine(&self, ranks: usize, bytes: usize) -> (f64, bool) {
        let machines = ranks.div_ceil(self.per_machine);
        let (time, simulated) = self.time(Algorithm::choose(machines, bytes), machines, bytes);
        (time + self.local * bytes as f64, simulated)
    }
}

fn predict(ranks: &[usize], bytes: &[usize], settings: &[&str]) -> Outcome {
    let cluster = Cluster::new(settings)?;
    let names = Algorithm::ALL.map(|algorithm| format!("{:>12}", algorithm.name())).concat();
    println!("{:>6} {:>10}{names}  by machine", "ranks", "bytes");
    let cell = |(time, simulated): (f64, bool), chosen| {
        let marks = [if simulated { "" } else { "~" }, if chosen { "*" } else { "" }].concat();
        format!("{:>12}", format!("{marks}{:.3}", time * 1e3))
    };
    for (ranks, bytes) in ranks.iter().flat_map(|ranks| bytes.iter().map(move |bytes| (*ranks, *bytes))) {
        let chosen = Algorithm::choose(ranks, bytes);
        let cells = Algorithm::ALL
            .map(|algorithm| cell(cluster.time(algorithm, ranks, bytes), algorithm == chosen))
            .concat();
        println!("{ranks:>6} {bytes:>10}{cells}{}", cell(cluster.time_by_machine(ranks, bytes), false));
    }
    Ok(())
}

/// Measures each size for `seconds`.
fn measure(algorithm: Algorithm, sizes: &[usize], seconds: f64) -> Outcome {
    let options = Options::default().transport(Transport::Tcp).tcp_algorithm(algorithm);
    let group = ProcessGroup::init(InitMethod::Env, options)?;
    for bytes in sizes {
        let mut buffer = vec![1f32; bytes / 4];
        let (begun, mut times) = (Instant::now(), Vec::new());
        loop {
            buffer.fill(1.0);
            group.barrier()?;
            let started = Instant::now();
            group.all_reduce(&mut buffer, ReduceOp::Sum)?;
            let time = started.elapsed().as_secs_f64();
            if buffer.iter().any(|sum| *sum != group.world_size() as f32) {
                return Err("a wrong sum".into());
            }
            // The time of the slowest rank, and whether rank 0 has measured enough.
            let enough = group.rank() == 0 && begun.elapsed().as_secs_f64() > seconds && times.len() > 5;
            let mut round = [time, f64::from(enough)];
            group.all_reduce(&mut round, ReduceOp::Max)?;
            times.push(round[0]);
            if round[1] > 0.0 {
                break;
            }
        }
        // The first rounds connect and fault pages in.
        let mut times = times.split_off(3);
        times.sort_by(f64::total_cmp);
        if group.rank() == 0 {
            let (ranks, rounds) = (group.world_size(), times.len());
            let (median, least) = (times[rounds / 2] * 1e3, times[0] * 1e3);
            println!("{algorithm} {ranks} {bytes} {median:.4} {least:.4} {rounds}");
        }
    }
    group.barrier()?;
    group.destroy();
    Ok(())
}
