//! Failures on the device: they end the group and NCCL on all ranks, with one cause.

use super::{
    common::{Kind, options, world},
    site::{Op, StandIn, attach, cause, collective, start_sum},
};
use burn_ddp_comm::{Error, ProcessGroup, ReduceOp, Result};
use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

const SUM: Op = Op::AllReduce(ReduceOp::Sum);

/// Reduces until a call fails; returns its error and the group's cause.
fn until_failure(group: &ProcessGroup) -> (Error, Error) {
    let step = |_| collective(group, &SUM, &[1.0f32; 100]).err();
    let error = (0..10).find_map(step).expect("a failure");
    (error, cause(group))
}

/// Checks that all ranks fail with one cause, also in later calls, and abort NCCL.
fn all_fail(kind: Kind, settings: &[(&str, i32, u64)], timeout: Duration) -> Error {
    let stand_in = StandIn::of(settings).unwrap();
    let begun = Instant::now();
    let causes = world(kind, 3, options().timeout(timeout), |group| {
        attach(&group, &stand_in);
        let (_, cause) = until_failure(&group);
        let later = [collective(&group, &SUM, &[1.0f32]).map(|_| ()), group.barrier()];
        for later in later {
            assert_eq!(later.unwrap_err().cause(), &cause);
        }
        cause
    });
    assert!(begun.elapsed() < Duration::from_secs(60));
    assert!(causes.iter().all(|cause| *cause == causes[0]), "{causes:?}");
    let begun = Instant::now();
    for rank in 0..3 {
        while !stand_in.calls(rank).contains(&"Abort".to_string()) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", stand_in.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(!stand_in.calls(rank).contains(&"Destroy".to_string()), "{:?}", stand_in.log());
    }
    causes[0].clone()
}

#[test]
fn a_call_that_hangs_on_the_device_times_out() {
    for kind in [Kind::Thread, Kind::Tcp] {
        let error = all_fail(kind, &[("hang_at", 1, 3)], Duration::from_secs(1));
        let Error::Timeout { call, absent, .. } = &error else { panic!("{error}") };
        assert!(call.starts_with("all_reduce #"), "{call}");
        assert!(absent.contains("NCCL did not finish"), "{absent}");
    }
}

/// As when a peer dies while the first call connects the ranks.
#[test]
fn a_call_that_blocks_in_nccl_times_out() {
    for kind in [Kind::Thread, Kind::Tcp] {
        for rank in [1, -1] {
            let error = all_fail(kind, &[("block_at", rank, 2)], Duration::from_secs(1));
            let Error::Timeout { call, .. } = &error else { panic!("{error}") };
            assert!(call.starts_with("all_reduce #"), "{call}");
        }
    }
}

#[test]
fn an_asynchronous_error_ends_the_group() {
    for kind in [Kind::Thread, Kind::Shm] {
        let error = all_fail(kind, &[("error_at", 2, 2)], Duration::from_secs(60)).to_string();
        assert!(error.contains("all_reduce #") && error.contains("internal error"), "{error}");
        assert!(error.contains("NCCL_DEBUG=INFO"), "{error}");
    }
}

#[test]
fn an_error_on_another_rank_ends_the_group() {
    let error = all_fail(Kind::Tcp, &[("remote_error_at", 0, 4)], Duration::from_secs(60)).to_string();
    assert!(error.contains("NCCL cannot reach another rank"), "{error}");
}

/// Result of each rank's calls.
fn each(
    size: usize,
    timeout: Duration,
    act: impl Fn(&ProcessGroup) -> Result<()> + Sync,
) -> (Vec<Error>, Vec<String>) {
    let stand_in = StandIn::new();
    let errors = world(Kind::Shm, size, options().timeout(timeout), |group| {
        attach(&group, &stand_in);
        let error = act(&group).unwrap_err().cause().clone();
        cause(&group);
        error
    });
    (errors, stand_in.log())
}

#[test]
fn a_mismatch_is_detected_before_nccl_is_called() {
    let (errors, log) = each(2, Duration::from_secs(60), |group| {
        collective(group, &SUM, &vec![1.0f32; 10 + group.rank()]).map(|_| ())
    });
    for error in errors {
        let Error::Mismatch { call_a, call_b, .. } = &error else { panic!("{error}") };
        let both = format!("{call_a} {call_b}");
        assert!(both.contains("10 x F32") && both.contains("11 x F32"), "{both}");
    }
    assert!(!log.iter().any(|line| line.starts_with("AllReduce")), "{log:?}");
}

#[test]
fn device_and_host_memory_in_one_call_are_a_mismatch() {
    let (errors, _) = each(2, Duration::from_secs(60), |group| match group.rank() {
        0 => collective(group, &Op::Broadcast(0), &[1.0f32; 8]).map(|_| ()),
        _ => group.all_reduce(&mut [1.0f32; 8], ReduceOp::Sum),
    });
    assert!(errors.iter().all(|error| matches!(error, Error::Mismatch { .. })), "{errors:?}");
}

#[test]
fn an_absent_rank_is_named() {
    let (errors, log) = each(3, Duration::from_secs(2), |group| match group.rank() {
        1 => Err(cause(group)),
        _ => collective(group, &SUM, &[1.0f32]).map(|_| ()),
    });
    for error in errors {
        assert!(error.to_string().contains("rank 1"), "{error}");
    }
    assert!(!log.iter().any(|line| line.starts_with("AllReduce")), "{log:?}");
}

#[test]
fn aborting_the_group_ends_calls_that_block_in_nccl_and_work_on_the_device() {
    for fault in ["block_at", "hang_at"] {
        let stand_in = StandIn::of(&[(fault, -1, 1)]).unwrap();
        world(Kind::Thread, 2, options(), |group| {
            attach(&group, &stand_in);
            let (clone, rank) = (group.clone(), group.rank());
            std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    if rank == 1 {
                        clone.abort("enough");
                    }
                });
                let begun = Instant::now();
                assert!(collective(&group, &SUM, &[1.0f32]).is_err());
                assert!(begun.elapsed() < Duration::from_secs(30));
            });
            let cause = cause(&group);
            assert!(matches!(&cause, Error::PeerLost { rank: 1, reason } if reason == "enough"), "{cause}");
        });
    }
}

/// Rank 1 begins after rank 0 has started three calls.
#[test]
fn a_started_call_does_not_wait_for_the_other_ranks() {
    let (stand_in, started) = (StandIn::new(), Barrier::new(2));
    world(Kind::Shm, 2, options().timeout(Duration::from_secs(10)), |group| {
        attach(&group, &stand_in);
        if group.rank() == 1 {
            started.wait();
        }
        let calls: Vec<_> = (0..3).map(|_| start_sum(&group, 10).unwrap()).collect();
        if group.rank() == 0 {
            started.wait();
        }
        calls.iter().for_each(|call| call.wait().unwrap());
        group.barrier().unwrap();
    });
}

#[test]
fn different_started_calls_fail_on_all_ranks() {
    let (errors, _) = each(2, Duration::from_secs(60), |group| {
        let _ = start_sum(group, 10 + group.rank());
        Err(cause(group))
    });
    for error in errors {
        let Error::Mismatch { call_a, call_b, .. } = &error else { panic!("{error}") };
        let both = format!("{call_a} {call_b}");
        assert!(both.contains("10 x F32") && both.contains("11 x F32"), "{both}");
    }
}

#[test]
fn a_rank_that_is_absent_from_a_started_call_is_named() {
    let (errors, _) = each(3, Duration::from_secs(2), |group| {
        if group.rank() != 1 {
            let _ = start_sum(group, 10);
        }
        Err(cause(group))
    });
    for error in errors {
        assert!(matches!(error, Error::Timeout { .. }) && error.to_string().contains("rank 1"), "{error}");
    }
}
