//! Ranks as processes, one of which dies during a call: the others fail with an error that names it.

use super::{
    common::{free_port, options},
    site::{Op, StandIn, attach, collective},
};
use burn_ddp_comm::{InitMethod, ProcessGroup, ReduceOp};
use std::{
    env,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Environment variable with a rank process's rank, world size and port.
const ROLE: &str = "NCCL_TEST_ROLE";

/// Entry point of a rank process; passes at once in the test run itself.
#[test]
fn rank() {
    let Ok(role) = env::var(ROLE) else { return };
    let [rank, size, port] = role.split(' ').map(|n| n.parse().unwrap()).collect::<Vec<usize>>()[..] else {
        panic!("{role}")
    };
    thread::spawn(|| {
        thread::sleep(Duration::from_secs(120));
        eprintln!("a rank hangs");
        std::process::abort();
    });
    let method: InitMethod = format!("tcp://127.0.0.1:{port}").parse().unwrap();
    let group = ProcessGroup::init(method, options().rank(rank).world_size(size)).unwrap();
    let stand_in = StandIn::new();
    attach(&group, &stand_in);
    for round in 0..20 {
        let sum = collective(&group, &Op::AllReduce(ReduceOp::Sum), &[round as f32; 1000]);
        match sum {
            Ok(sum) => assert_eq!(sum, [(round * size) as f32; 1000]),
            Err(error) => {
                // The group may record the cause shortly after the call fails.
                println!("ENDED {error} / {}", super::site::cause(&group));
                while !stand_in.calls(rank).contains(&"Abort".to_string()) {
                    thread::sleep(Duration::from_millis(1));
                }
                return;
            }
        }
    }
    group.destroy();
    println!("ENDED well");
}

fn start(rank: usize, size: usize, port: u16, wrong: &str) -> Child {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", "nccl::killed::rank", "--nocapture", "--test-threads=1"]);
    command.env(ROLE, format!("{rank} {size} {port}")).env("STAND_IN", wrong);
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// Runs the ranks; returns the last line of each, and whether it exited successfully.
fn run(size: usize, wrong: &str) -> Vec<(String, bool)> {
    let port = free_port();
    let ranks: Vec<Child> = (0..size).map(|rank| start(rank, size, port, wrong)).collect();
    let said = |rank: Child| {
        let output = rank.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let last = text.lines().filter_map(|line| line.split_once("ENDED ")).next_back();
        (last.map(|(_, rest)| rest.to_string()).unwrap_or_default(), output.status.success())
    };
    ranks.into_iter().map(said).collect()
}

#[test]
fn processes_reduce_and_shut_down() {
    for size in [2, 5] {
        for (said, well) in run(size, "") {
            assert_eq!((said.as_str(), well), ("well", true));
        }
    }
}

#[test]
fn a_rank_that_dies_during_a_call_is_named_by_all_others() {
    let begun = Instant::now();
    for (rank, (said, well)) in run(4, "die_at:2=7").into_iter().enumerate() {
        if rank == 2 {
            assert!(!well && said.is_empty(), "{said}");
        } else {
            assert!(well && said.contains("rank 2"), "rank {rank}: {said}");
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(100));
}
