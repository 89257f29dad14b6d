//! Ranks as processes, one of which dies during a call: the others fail with an error that names it.

use super::site::{Op, StandIn, attach, cause, collective};
use crate::processes::launch;
use burn_ddp_comm::{Error, ProcessGroup, ReduceOp, Result};
use std::{thread, time::Duration};

/// The calls of a rank process.
pub fn work(group: &ProcessGroup, rounds: usize) -> Result<()> {
    let (stand_in, size) = (StandIn::new(), group.world_size());
    attach(group, &stand_in);
    for round in 0..rounds {
        match collective(group, &Op::AllReduce(ReduceOp::Sum), &[round as f32; 1000]) {
            Ok(sum) => assert_eq!(sum, [(round * size) as f32; 1000]),
            Err(_) => {
                // The group may record the cause shortly after the call fails.
                let cause = cause(group);
                while !stand_in.calls(group.rank()).contains(&"Abort".to_string()) {
                    thread::sleep(Duration::from_millis(1));
                }
                return Err(cause);
            }
        }
    }
    Ok(())
}

#[test]
fn processes_reduce_and_shut_down() {
    for size in [2, 5] {
        for rank in &mut launch(size, "nccl 60000 20", &[]).ranks {
            assert_eq!(rank.ended(), None);
            assert!(rank.process.wait().unwrap().success());
        }
    }
}

#[test]
fn a_rank_that_dies_during_a_call_is_named_by_all_others() {
    let mut world = launch(4, "nccl 60000 20", &[("STAND_IN", "die_at:2=7")]);
    for (rank, process) in world.ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != 2) {
        let error = process.ended().expect("an error");
        assert!(matches!(error, Error::PeerLost { rank: 2, .. }), "rank {rank}: {error}");
        assert!(process.process.wait().unwrap().success());
    }
    assert!(!world.ranks[2].process.wait().unwrap().success());
}
