//! The MPI transport under a real `mpirun`, bit-identical to TCP.
//!
//! The test binary starts itself for every rank. Other tests compare TCP with a serial reference.

use burn_ddp_comm::{Element, Error, InitMethod, Options, ProcessGroup, ReduceOp, Result, Transport};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    env,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// Environment variable with the scenario of a rank process.
const ROLE: &str = "COLLECTIVE_TEST_MPI_ROLE";
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];
/// Element counts: none, one, few, more than one piece of the transport.
const COUNTS: [usize; 4] = [0, 1, 257, 300_001];

/// Entry point of a rank process; passes at once in the test run itself.
#[test]
fn rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let result = match role.as_str() {
        "compare" => compare(),
        "differ" => differ(),
        "absent" => absent(),
        "killed" => killed(),
        "refused" => refused(),
        other => panic!("{other}"),
    };
    println!("ENDED {}", serde_json::to_string(&result.err()).unwrap());
}

fn options() -> Options {
    Options::default().timeout(Duration::from_secs(60)).transport(Transport::Mpi)
}

/// Runs ranks under mpirun.
///
/// OpenMPI 4.1's mpirun can deadlock in `PMIx_server_finalize` after all ranks have ended. Such a run is killed and
/// repeated.
fn mpirun(ranks: usize, role: &str) -> (Output, Duration) {
    for attempt in 1.. {
        let begun = Instant::now();
        let output = Command::new("timeout")
            .args(["--kill-after=5", "100", "mpirun", "--allow-run-as-root", "--oversubscribe"])
            .args(["--mca", "btl", "self,vader,tcp"])
            .args(["-n", &ranks.to_string(), env::current_exe().unwrap().to_str().unwrap()])
            .args(["--exact", "mpi::rank", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env_remove("RANK")
            .env_remove("WORLD_SIZE")
            .output()
            .expect("mpirun, from the Debian package openmpi-bin");
        // `timeout` exits with 124, or is killed with the command.
        let killed = output.status.code().is_none_or(|code| code == 124 || code == 137);
        if attempt < 3 && killed && ends(&output).len() == ranks {
            eprintln!("mpirun did not end although all {ranks} ranks had; repeated");
            continue;
        }
        return (output, begun.elapsed());
    }
    unreachable!("the last attempt returns")
}

/// How every rank ended, in any order.
fn ends(output: &Output) -> Vec<Option<Error>> {
    let text = String::from_utf8_lossy(&output.stdout);
    let ends = text.lines().filter_map(|line| line.split_once("ENDED "));
    ends.map(|(_, end)| serde_json::from_str(end).unwrap()).collect()
}

#[test]
fn every_operation_is_bit_identical_to_tcp() {
    for ranks in [1, 2, 3, 4] {
        let (output, _) = mpirun(ranks, "compare");
        assert!(output.status.success(), "{ranks} ranks: {output:?}");
        assert_eq!(ends(&output), vec![None; ranks], "{output:?}");
    }
}

fn compare() -> Result<()> {
    let mpi = ProcessGroup::init(InitMethod::Mpi, options())?;
    let tcp = ProcessGroup::init(InitMethod::Mpi, options().transport(Transport::Tcp))?;
    let alone = mpi.world_size() == 1;
    assert_eq!([mpi.transport(), tcp.transport()], if alone { ["solo"; 2] } else { ["mpi", "tcp"] });
    same::<f32>(&mpi, &tcp, |rng| rng.random_range(-2.0..2.0))?;
    same::<f64>(&mpi, &tcp, |rng| rng.random_range(-2.0..2.0))?;
    same::<f16>(&mpi, &tcp, |rng| f16::from_f32(rng.random_range(-2.0..2.0)))?;
    same::<bf16>(&mpi, &tcp, |rng| bf16::from_f32(rng.random_range(-2.0..2.0)))?;
    same::<i32>(&mpi, &tcp, |rng| rng.random())?;
    same::<i64>(&mpi, &tcp, |rng| rng.random())?;
    same::<u8>(&mpi, &tcp, |rng| rng.random())?;
    // Sub-groups: odd and even ranks, in reverse order.
    let color = (mpi.rank() % 2) as u64;
    let half = mpi.split(color, -(mpi.rank() as i64))?;
    let ranks = half.all_gather(&[mpi.rank() as i32])?.concat();
    let expected: Vec<i32> = (0..mpi.world_size() as i32).rev().filter(|r| *r as u64 % 2 == color).collect();
    assert_eq!(ranks, expected);
    mpi.destroy();
    tcp.destroy();
    Ok(())
}

/// Runs all operations on one type with both groups and compares the results.
fn same<T: Element>(mpi: &ProcessGroup, tcp: &ProcessGroup, random: impl Fn(&mut StdRng) -> T) -> Result<()> {
    let (rank, size) = (mpi.rank(), mpi.world_size());
    let mut rng = StdRng::seed_from_u64(rank as u64);
    for count in COUNTS {
        let mine: Vec<T> = (0..count * size).map(|_| random(&mut rng)).collect();
        let part = &mine[..count];
        let both = |act: &dyn Fn(&ProcessGroup) -> Result<Vec<T>>| -> Result<()> {
            let (a, b) = (act(mpi)?, act(tcp)?);
            assert!(
                bytemuck::cast_slice::<T, u8>(&a) == bytemuck::cast_slice::<T, u8>(&b),
                "{count} x {:?} on rank {rank}",
                T::DTYPE
            );
            Ok(())
        };
        for op in OPS {
            both(&|group| {
                let mut buffer = part.to_vec();
                group.all_reduce(&mut buffer, op)?;
                Ok(buffer)
            })?;
            both(&|group| Ok(group.reduce_scatter(&mut mine.clone(), op)?.to_vec()))?;
        }
        let root = size - 1;
        both(&|group| {
            let mut buffer = part.to_vec();
            group.broadcast(&mut buffer, root)?;
            Ok(buffer)
        })?;
        both(&|group| Ok(group.all_gather(part)?.concat()))?;
        both(&|group| Ok(group.gather(part, root)?.unwrap_or_default().concat()))?;
        both(&|group| {
            let mut buffer = part.to_vec();
            group.scatter(if rank == root { &mine } else { &[] }, &mut buffer, root)?;
            Ok(buffer)
        })?;
        both(&|group| {
            let mut buffer = part.to_vec();
            group.reduce(&mut buffer, ReduceOp::Sum, root)?;
            Ok(buffer)
        })?;
        if size > 1 {
            both(&|group| {
                let mut buffer = part.to_vec();
                match rank {
                    0 => group.send(part, 1)?,
                    1 => group.recv(&mut buffer, 0)?,
                    _ => {}
                }
                Ok(buffer)
            })?;
        }
        mpi.barrier()?;
    }
    Ok(())
}

#[test]
fn different_calls_are_a_mismatch_on_all_ranks() {
    let (output, _) = mpirun(3, "differ");
    let ends = ends(&output);
    assert_eq!(ends.len(), 3, "{output:?}");
    for end in ends {
        let error = end.expect("an error").to_string();
        assert!(
            error.contains("mismatch") && error.contains("10 x F32") && error.contains("11 x F32"),
            "{error}"
        );
    }
}

fn differ() -> Result<()> {
    let group = ProcessGroup::init(InitMethod::Mpi, options())?;
    let count = 10 + usize::from(group.rank() == 1);
    group.all_reduce(&mut vec![1f32; count], ReduceOp::Sum)
}

#[test]
fn an_absent_rank_is_named_at_the_deadline() {
    let (output, took) = mpirun(3, "absent");
    assert!(!output.status.success() && took < Duration::from_secs(60), "{took:?} {output:?}");
    let errors: Vec<_> = ends(&output).into_iter().flatten().map(|error| error.to_string()).collect();
    let named = |error: &&String| error.contains("timed out") && error.contains("rank 2");
    assert!(errors.iter().filter(named).count() >= 2, "{errors:?}");
}

fn absent() -> Result<()> {
    let group = ProcessGroup::init(InitMethod::Mpi, options().timeout(Duration::from_secs(2)))?;
    if group.rank() == 2 {
        // Long enough for the others to time out.
        std::thread::sleep(Duration::from_secs(8));
    }
    group.all_reduce(&mut [1f32; 100_000], ReduceOp::Sum)
}

#[test]
fn a_killed_rank_ends_the_job() {
    let (output, took) = mpirun(3, "killed");
    assert!(!output.status.success() && took < Duration::from_secs(60), "{took:?} {output:?}");
}

fn killed() -> Result<()> {
    let group = ProcessGroup::init(InitMethod::Mpi, options())?;
    for round in 0.. {
        if round == 100 && group.rank() == 1 {
            // SAFETY: a process may kill itself.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        group.all_reduce(&mut [1f32; 1000], ReduceOp::Sum)?;
    }
    Ok(())
}

#[test]
fn ranks_of_another_launcher_are_rejected() {
    // In a child process, because MPI's initialisation changes the environment of all later ones.
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "mpi::rank", "--nocapture"])
        .env(ROLE, "refused")
        .output()
        .unwrap();
    let error = ends(&output)[0].clone().expect("an error").to_string();
    assert!(error.contains("rank 1 of 2") && error.contains("mpirun"), "{error}");
}

fn refused() -> Result<()> {
    ProcessGroup::init(InitMethod::Tcp("127.0.0.1:1".into()), options().rank(1).world_size(2)).map(drop)
}
