//! `burn-ddp bench`: benchmarks of collectives with verified results.

use crate::{
    context::{ContextArgs, launch_threads_with, start, world_args::WorldArgs},
    device::DeviceArg,
    process::{console::print_line, timing::median},
};
use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use collective::{ProcessGroup, ReduceOp, Transport};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};

/// The benchmarks.
#[derive(Subcommand, Clone, Debug)]
pub enum Bench {
    /// Measure all-reduce time by buffer size, like nccl-tests
    AllReduce(AllReduce),
}

#[derive(Args, Clone, Debug)]
pub struct AllReduce {
    /// Transport: auto, thread, shm, tcp or mpi (under mpirun)
    #[arg(long, default_value = "auto")]
    transport: Transport,
    /// Number of ranks on this machine, without a launcher
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=512))]
    ranks: u16,
    /// Buffer sizes in bytes, with K, M and G for powers of 1000
    #[arg(long, default_value = "4K,64K,1M,4.8M,16M,64M", value_delimiter = ',', value_parser = bytes)]
    bytes: Vec<usize>,
    /// Measuring time per size in seconds
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Print JSON lines instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    world: WorldArgs,
}

/// `4.8M` as a number of bytes, rounded down to whole f32.
fn bytes(text: &str) -> Result<usize, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'k' | 'K')) => (&text[..at], 1e3),
        Some((at, 'm' | 'M')) => (&text[..at], 1e6),
        Some((at, 'g' | 'G')) => (&text[..at], 1e9),
        Some(_) | None => (text, 1.0),
    };
    let size: f64 = number.parse().map_err(|_| "expected a size such as 4K or 4.8M".to_string())?;
    if !(4.0..=16e9).contains(&(size * unit)) {
        return Err("expected a size from 4 to 16G bytes".into());
    }
    Ok((size * unit) as usize / 4 * 4)
}

/// One line of the table.
#[derive(Serialize)]
struct Row {
    transport: &'static str,
    ranks: usize,
    bytes: usize,
    rounds: usize,
    median_us: f64,
    min_us: f64,
    /// Bytes over the median time.
    algbw_gb_s: f64,
    /// algbw × 2(n−1)/n, which is comparable over n (nccl-tests, doc/PERFORMANCE.md).
    busbw_gb_s: f64,
    /// Elements that were not the sum, over all rounds and ranks.
    wrong: i64,
}

/// Runs the benchmark and starts the ranks if no launcher did.
///
/// # Errors
/// If a rank cannot start, a collective fails or a sum is wrong.
pub fn run(Bench::AllReduce(bench): &Bench) -> Result<ExitCode> {
    let (ranks, transport) = (usize::from(bench.ranks), bench.transport);
    if transport == Transport::Thread {
        let args = ContextArgs { device: DeviceArg::Cpu, ..ContextArgs::default() };
        launch_threads_with(&args, ranks, |context| measure(bench, context.group()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let args = ContextArgs::for_command(ranks, &bench.world)?;
    let args = ContextArgs { device: DeviceArg::Cpu, transport, ..args };
    start(&args, |context| measure(bench, context.group()))
}

fn measure(bench: &AllReduce, group: &ProcessGroup) -> Result<()> {
    let prints = group.rank() == 0;
    if prints && !bench.json {
        print_line(&format!("# {} rank(s) over {}, f32 sum", group.world_size(), group.transport()))?;
        print_line(&format!("# copying within memory, 64 MB: {:.2} GB/s", copy_bandwidth()))?;
        let columns = ["bytes", "rounds", "median us", "min us", "algbw GB/s", "busbw GB/s", "wrong"];
        print_line(&columns.map(|c| format!("{c:>11}")).join(" "))?;
    }
    for &bytes in &bench.bytes {
        let row = one_size(bench, group, bytes)?;
        if prints && bench.json {
            print_line(&serde_json::to_string(&row)?)?;
        } else if prints {
            print_line(&format!(
                "{:>11} {:>11} {:>11.1} {:>11.1} {:>11.3} {:>11.3} {:>11}",
                row.bytes, row.rounds, row.median_us, row.min_us, row.algbw_gb_s, row.busbw_gb_s, row.wrong
            ))?;
        }
        if row.wrong > 0 {
            bail!("all_reduce of {bytes} bytes over {} gave {} wrong elements", row.transport, row.wrong);
        }
    }
    Ok(())
}

/// Number of elements after which the values of a buffer repeat.
const PERIOD: usize = 1000;

/// Rounds of barrier, all-reduce, check; only the all-reduce is timed.
fn one_size(bench: &AllReduce, group: &ProcessGroup, bytes: usize) -> Result<Row> {
    let (n, size) = (group.world_size(), bytes / 4);
    // Whole numbers below 2^24 add up exactly in f32, in any order. They repeat after `PERIOD` elements, so that
    // filling and checking a buffer takes little more time than the all-reduce.
    let value = |rank: usize, i: usize| ((i * 31 + rank * 7) % PERIOD) as f32;
    let mine: Vec<f32> = (0..PERIOD).map(|i| value(group.rank(), i)).collect();
    let sums: Vec<f32> = (0..PERIOD).map(|i| (0..n).map(|rank| value(rank, i)).sum()).collect();
    let mut buffer = vec![0f32; size];
    let (mut times, mut wrong) = (Vec::new(), 0i64);
    let mut round = || -> Result<Duration> {
        buffer.chunks_mut(PERIOD).for_each(|part| part.copy_from_slice(&mine[..part.len()]));
        group.barrier()?;
        let begun = Instant::now();
        group.all_reduce(&mut buffer, ReduceOp::Sum)?;
        let took = begun.elapsed();
        let differ = |part: &[f32]| part.iter().zip(&sums).filter(|(x, sum)| x != sum).count() as i64;
        wrong += buffer.chunks(PERIOD).map(differ).sum::<i64>();
        Ok(took)
    };
    // Two rounds to warm up; the second says how many fit into the time.
    round()?;
    let mut rounds = [(bench.seconds / round()?.as_secs_f64().max(1e-6)).clamp(5.0, 2000.0) as i64];
    group.broadcast(&mut rounds, 0)?;
    for _ in 0..rounds[0] {
        times.push(round()?.as_secs_f64());
    }
    let mut wrong = [wrong];
    group.all_reduce(&mut wrong, ReduceOp::Sum)?;
    let (rounds, min) = (times.len(), times.iter().copied().fold(f64::INFINITY, f64::min));
    let median = median(times);
    let algbw = bytes as f64 / median / 1e9;
    Ok(Row {
        transport: group.transport(),
        ranks: n,
        bytes,
        rounds,
        median_us: median * 1e6,
        min_us: min * 1e6,
        algbw_gb_s: algbw,
        busbw_gb_s: algbw * 2.0 * (n as f64 - 1.0) / n as f64,
        wrong: wrong[0],
    })
}

/// Bytes copied per second, in GB/s, median of 9.
fn copy_bandwidth() -> f64 {
    let (from, mut to) = (vec![1u8; 64_000_000], vec![0u8; 64_000_000]);
    let time = |_| {
        let begun = Instant::now();
        to.copy_from_slice(&from);
        std::hint::black_box(&to);
        begun.elapsed().as_secs_f64()
    };
    from.len() as f64 / median((0..9).map(time).collect()) / 1e9
}

#[cfg(test)]
mod tests {
    use super::bytes;

    #[test]
    fn sizes_are_read_as_documented() {
        assert_eq!(bytes("4K"), Ok(4000));
        assert_eq!(bytes("4.8M"), Ok(4_800_000));
        assert_eq!(bytes("1g"), Ok(1_000_000_000));
        assert_eq!(bytes("13"), Ok(12));
        for bad in ["", "K", "0", "-4K", "4T", "99G", "µ"] {
            assert!(bytes(bad).is_err(), "{bad}");
        }
    }
}
