//! The MPI transport under a real `mpirun`.
//!
//! The test binary starts itself for every rank.

#[path = "engine/case.rs"]
mod case;
#[path = "engine/reference.rs"]
mod reference;

use burn_ddp_comm::{Error, InitMethod, Options, ProcessGroup, ReduceOp, Result, Transport};
use case::{Case, OPS};
use half::{bf16, f16};
use reference::Reference;
use std::{
    env,
    process::{Command, Output},
    time::{Duration, Instant},
};

/// Environment variable with the scenario of a rank process.
const ROLE: &str = "COLLECTIVE_TEST_MPI_ROLE";
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
            .args(["--exact", "rank", "--nocapture", "--test-threads=1"])
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
fn every_operation_matches_the_reference() {
    for ranks in [1, 2, 3, 4] {
        let (output, _) = mpirun(ranks, "compare");
        assert!(output.status.success(), "{ranks} ranks: {output:?}");
        assert_eq!(ends(&output), vec![None; ranks], "{output:?}");
    }
}

fn compare() -> Result<()> {
    let mpi = ProcessGroup::init(InitMethod::Mpi, options())?;
    assert_eq!(mpi.transport(), if mpi.world_size() == 1 { "solo" } else { "mpi" });
    check_all::<f32>(&mpi);
    check_all::<f64>(&mpi);
    check_all::<f16>(&mpi);
    check_all::<bf16>(&mpi);
    check_all::<i32>(&mpi);
    check_all::<i64>(&mpi);
    check_all::<u8>(&mpi);
    // Sub-groups: odd and even ranks, in reverse order.
    let color = (mpi.rank() % 2) as u64;
    let half = mpi.split(color, -(mpi.rank() as i64))?;
    let ranks = half.all_gather(&[mpi.rank() as i32])?.concat();
    let expected: Vec<i32> = (0..mpi.world_size() as i32).rev().filter(|r| *r as u64 % 2 == color).collect();
    assert_eq!(ranks, expected);
    mpi.destroy();
    Ok(())
}

/// Runs all operations on one type and compares the results with the serial reference.
fn check_all<T: Reference>(group: &ProcessGroup) {
    for (count, op) in COUNTS.into_iter().flat_map(|count| OPS.map(|op| (count, op))) {
        Case::<T>::new(group.world_size(), op, count, count as u64).check(group);
    }
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
        .args(["--exact", "rank", "--nocapture"])
        .env(ROLE, "refused")
        .output()
        .unwrap();
    let error = ends(&output)[0].clone().expect("an error").to_string();
    assert!(error.contains("rank 1 of 2") && error.contains("mpirun"), "{error}");
}

fn refused() -> Result<()> {
    ProcessGroup::init(InitMethod::Tcp("127.0.0.1:1".into()), options().rank(1).world_size(2)).map(drop)
}
