//! Benchmark of all-reduce through a process group, with one process per rank and verified results.
//!
//! ```text
//! cargo run --release --no-default-features --example group_all_reduce -- tcp 2
//! cargo run --release --no-default-features --example group_all_reduce -- auto 4 4096 4800000
//! ```
//!
//! Arguments: transport, number of ranks, and optionally sizes in bytes. Without `RANK` in the environment it
//! launches its own ranks; under another launcher it is one rank. Every round begins with a barrier. Times are those
//! of rank 0; `cpu` is its processor time per round, which is less sensitive to other load on the machine.
//! `bus` = bytes / median × 2 (n − 1) / n.

use collective::{InitMethod, Options, ProcessGroup, ReduceOp};
use std::{
    env,
    error::Error,
    process::{self, Command},
    time::{Duration, Instant},
};

/// Environment variable with the init method of ranks that this program has launched.
const RENDEZVOUS: &str = "GROUP_ALL_REDUCE_INIT_METHOD";
const SIZES: [usize; 6] = [4, 4 << 10, 64 << 10, 4_799_528, 16 << 20, 64 << 20];

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let mut arguments = env::args().skip(1);
    let transport = arguments.next().unwrap_or_else(|| "auto".into());
    let ranks: usize = arguments.next().map_or(Ok(2), |n| n.parse())?;
    let sizes: Vec<usize> = arguments.map(|n| n.parse()).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };
    if env::var_os("RANK").is_none() {
        return launch(ranks);
    }
    let options = Options::default().transport(transport.parse()?).timeout(Duration::from_secs(60));
    let begun = Instant::now();
    let method = env::var(RENDEZVOUS).map_or(Ok(InitMethod::Env), |file| file.parse())?;
    let group = ProcessGroup::init(method, options)?;
    if group.rank() == 0 {
        let ms = begun.elapsed().as_secs_f64() * 1e3;
        println!("{}, {} ranks, rendezvous {ms:.1} ms", group.transport(), group.world_size());
        println!(
            "{:>10} {:>10} {:>10} {:>10} {:>10} {:>10}",
            "bytes", "min ms", "median ms", "cpu ms", "GB/s", "bus GB/s"
        );
    }
    sizes.iter().try_for_each(|bytes| measure(&group, *bytes))?;
    group.destroy();
    Ok(())
}

/// Starts the ranks, which meet through a file.
fn launch(ranks: usize) -> Outcome {
    let file = env::temp_dir().join(format!("group-all-reduce-{}", process::id()));
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args().skip(1));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", ranks.to_string());
        command.env(RENDEZVOUS, format!("file://{}", file.display())).spawn()
    };
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut failed = 0;
    for child in &mut children {
        failed += usize::from(!child.wait()?.success());
    }
    if failed == 0 { Ok(()) } else { Err(format!("{failed} ranks failed").into()) }
}

fn measure(group: &ProcessGroup, bytes: usize) -> Outcome {
    let count = bytes / 4;
    let rounds = ((256 << 20) / bytes.max(1)).clamp(5, 300) + 3;
    let input = |rank: usize, i: usize, round: usize| ((i + round) % 97) as f32 + rank as f32;
    let mut buffer = vec![0f32; count];
    let (mut times, mut cpu) = (Vec::new(), 0.0);
    for round in 0..rounds {
        buffer.iter_mut().enumerate().for_each(|(i, v)| *v = input(group.rank(), i, round));
        group.barrier()?;
        let (started, used) = (Instant::now(), processor_seconds());
        group.all_reduce(&mut buffer, ReduceOp::Sum)?;
        // The first rounds include page faults.
        if round >= 3 {
            times.push(started.elapsed().as_secs_f64());
            cpu += processor_seconds() - used;
        }
        // Small integers: exact in f32 in any order.
        let expected = |i| (0..group.world_size()).map(|rank| input(rank, i, round)).sum::<f32>();
        if let Some(i) = (0..count).find(|i| buffer[*i] != expected(*i)) {
            return Err(format!("wrong sum {} instead of {} at {i}", buffer[i], expected(i)).into());
        }
    }
    times.sort_by(f64::total_cmp);
    let (min, median, size) = (times[0], times[times.len() / 2], group.world_size());
    if group.rank() == 0 {
        let bandwidth = bytes as f64 / median / 1e9;
        let bus = bandwidth * 2.0 * (size - 1) as f64 / size as f64;
        let cpu = cpu / times.len() as f64 * 1e3;
        println!(
            "{bytes:>10} {:>10.4} {:>10.4} {cpu:>10.4} {bandwidth:>10.2} {bus:>10.2}",
            min * 1e3,
            median * 1e3
        );
    }
    Ok(())
}

/// Processor time of this process, all threads, in user and kernel mode.
fn processor_seconds() -> f64 {
    // SAFETY: a zeroed `rusage` is valid, and `getrusage` fills it.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut usage);
        usage
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}
