//! Benchmark of all-reduce between ranks of this machine, with verified results.
//!
//! ```text
//! cargo run --release -p burn-ddp-comm --example local_all_reduce -- shm 2
//! cargo run --release -p burn-ddp-comm --example local_all_reduce -- thread 4 4096 4800000
//! ```
//!
//! Arguments: transport (`shm`, `thread`), number of ranks, and optionally sizes in bytes. Every round begins with a
//! barrier; `time` is rank 0's time per round. `bus` is the memory bandwidth per rank that a ring would need:
//! bytes / median time × 2 (n − 1) / n. Shared memory needs Linux.

use burn_ddp_comm::{InitMethod, Options, ProcessGroup, ReduceOp, Transport};
use std::{env, error::Error, process::Command, thread, time::Instant};

const SIZES: [usize; 6] = [4 << 10, 64 << 10, 1 << 20, 4_799_528, 16 << 20, 64 << 20];
/// Environment variable with a process's rank and the file through which the ranks meet.
const CHILD: &str = "LOCAL_ALL_REDUCE_CHILD";

type Outcome = Result<(), Box<dyn Error + Send + Sync>>;

fn main() -> Outcome {
    let mut arguments = env::args().skip(1);
    let transport = arguments.next().unwrap_or_else(|| "shm".to_string());
    let ranks: usize = arguments.next().map_or(Ok(2), |n| n.parse())?;
    let sizes: Vec<usize> = arguments.map(|n| n.parse()).collect::<Result<_, _>>()?;
    let sizes = if sizes.is_empty() { SIZES.to_vec() } else { sizes };

    if let Ok(child) = env::var(CHILD) {
        let (rank, file) = child.split_once(' ').ok_or("malformed")?;
        return measure(&join(rank.parse()?, ranks, file)?, &sizes);
    }
    println!("{transport}, {ranks} ranks; copying 64 MiB on one core: {:.1} GB/s", copy_bandwidth());
    println!("{:>10} {:>10} {:>10} {:>12} {:>12}", "bytes", "min ms", "median ms", "GB/s", "bus GB/s");
    match transport.as_str() {
        "shm" => processes(ranks, &sizes),
        "thread" => threads(ranks, &sizes),
        other => Err(format!("no transport {other:?}: choose shm or thread").into()),
    }
}

fn join(rank: usize, ranks: usize, file: &str) -> burn_ddp_comm::Result<ProcessGroup> {
    let options = Options::default().rank(rank).world_size(ranks).transport(Transport::Shm);
    ProcessGroup::init(InitMethod::File(file.into()), options)
}

fn processes(ranks: usize, sizes: &[usize]) -> Outcome {
    let file = env::temp_dir().join(format!("local-all-reduce-{}", std::process::id()));
    let file = file.to_str().ok_or("the folder for temporary files is not UTF-8")?;
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args().skip(1)).env(CHILD, format!("{rank} {file}")).spawn()
    };
    let mut children = (1..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    measure(&join(0, ranks, file)?, sizes)?;
    for child in &mut children {
        if !child.wait()?.success() {
            return Err("a rank failed".into());
        }
    }
    Ok(())
}

fn threads(ranks: usize, sizes: &[usize]) -> Outcome {
    let groups = ProcessGroup::threads(ranks, Options::default())?;
    thread::scope(|scope| {
        let started: Vec<_> =
            groups.into_iter().map(|group| scope.spawn(move || measure(&group, sizes))).collect();
        started.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}

fn measure(group: &ProcessGroup, sizes: &[usize]) -> Outcome {
    let world = group.world();
    for bytes in sizes {
        let count = bytes / 4;
        let rounds = (256 << 20) / bytes.max(&(512 << 10));
        let mut times = Vec::new();
        let mut buffer = vec![0f32; count];
        // Small integers, exact in f32 in any order, and different ones in odd rounds.
        let value = |rank: usize, i: usize, odd: usize| ((i + 31 * odd) % 97) as f32 + rank as f32;
        let values = |of: &dyn Fn(usize, usize) -> f32| {
            [0, 1].map(|odd| (0..count).map(|i| of(i, odd)).collect::<Vec<_>>())
        };
        let inputs = values(&|i, odd| value(world.rank, i, odd));
        let sums = values(&|i, odd| (0..world.size).map(|rank| value(rank, i, odd)).sum());
        for round in 0..rounds.max(5) + 3 {
            buffer.copy_from_slice(&inputs[round % 2]);
            group.barrier()?;
            let started = Instant::now();
            group.all_reduce(&mut buffer, ReduceOp::Sum)?;
            // The first rounds include page faults.
            if round >= 3 {
                times.push(started.elapsed());
            }
            if buffer != sums[round % 2] {
                return Err(
                    format!("wrong sums in round {round} of {bytes} bytes on rank {}", world.rank).into()
                );
            }
        }
        times.sort();
        let (min, median) = (times[0].as_secs_f64(), times[times.len() / 2].as_secs_f64());
        if world.rank == 0 {
            let bandwidth = *bytes as f64 / median / 1e9;
            let bus = bandwidth * 2.0 * (world.size - 1) as f64 / world.size as f64;
            println!("{bytes:>10} {:>10.4} {:>10.4} {bandwidth:>12.2} {bus:>12.2}", min * 1e3, median * 1e3);
        }
    }
    Ok(())
}

/// Memory copy bandwidth in GB/s, the best of a few copies.
fn copy_bandwidth() -> f64 {
    let (from, mut to) = (vec![1u8; 64 << 20], vec![0u8; 64 << 20]);
    let seconds = (0..8).map(|_| {
        let started = Instant::now();
        to.copy_from_slice(std::hint::black_box(&from));
        started.elapsed().as_secs_f64()
    });
    from.len() as f64 / seconds.fold(f64::INFINITY, f64::min) / 1e9
}
