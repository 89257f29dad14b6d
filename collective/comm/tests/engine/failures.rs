//! Failures of a rank: every rank soon returns an error that names the cause.

use crate::common::{KINDS, Kind, first_error, in_every_kind, options, world};
use burn_ddp_comm::{Error, ProcessGroup, ReduceOp, Result};
use std::{thread, time::Duration};

/// A failure that comes at once could still find others in the call before.
fn let_others_go_on() {
    thread::sleep(Duration::from_millis(300));
}

/// The errors of all ranks in every kind of world. A rank on which `act` succeeds fails in a later call.
fn errors(size: usize, act: impl Fn(&ProcessGroup) -> Result<()> + Sync) -> Vec<Error> {
    let failed = |group: ProcessGroup| act(&group).err().unwrap_or_else(|| first_error(&group));
    KINDS.map(|kind| world(kind, size, options(), failed)).concat()
}

#[test]
fn different_operations_are_a_mismatch_on_all_ranks() {
    let errors = errors(3, |group| match group.rank() {
        1 => group.broadcast(&mut [0f32; 4], 1),
        _ => group.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
    });
    for error in errors {
        let text = error.to_string();
        assert!(matches!(error.cause(), Error::Mismatch { .. }), "{error:?}");
        assert!(text.contains("broadcast #1") && text.contains("all_reduce #1"), "{text}");
        assert!(text.contains("rank 1"), "{text}");
    }
}

#[test]
fn different_counts_types_and_reductions_are_a_mismatch() {
    let differ: [fn(&ProcessGroup, bool) -> Result<()>; 4] = [
        |group, odd| group.all_reduce(&mut vec![0f32; if odd { 5 } else { 4 }], ReduceOp::Sum),
        |group, odd| match odd {
            true => group.all_reduce(&mut [0f32; 4], ReduceOp::Sum),
            false => group.all_reduce(&mut [0i32; 4], ReduceOp::Sum),
        },
        |group, odd| group.all_reduce(&mut [0f32; 4], if odd { ReduceOp::Max } else { ReduceOp::Sum }),
        |group, odd| group.all_gather(&vec![0u8; if odd { 100_000 } else { 3 }]).map(drop),
    ];
    for call in differ {
        // A rank may still be in the barrier when the others fail after it.
        for error in errors(4, |group| group.barrier().and_then(|()| call(group, group.rank() == 2))) {
            assert!(matches!(error.cause(), Error::Mismatch { .. }), "{error:?}");
            assert!(error.to_string().contains("rank 2"), "{error}");
        }
    }
}

#[test]
fn different_roots_are_a_mismatch() {
    for error in errors(2, |group| group.broadcast(&mut [1f32; 4], group.rank())) {
        assert!(matches!(error.cause(), Error::Mismatch { .. }), "{error:?}");
        assert!(error.to_string().contains("root 0") && error.to_string().contains("root 1"), "{error}");
    }
}

#[test]
fn a_timeout_names_the_absent_rank_and_its_last_call() {
    in_every_kind(|kind| {
        let options = options().timeout(Duration::from_secs(2));
        let errors = world(kind, 3, options, |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                // Busy with other work until the others have timed out.
                thread::sleep(Duration::from_secs(4));
            }
            group.all_reduce(&mut [1f32], ReduceOp::Sum).unwrap_err()
        });
        for (rank, error) in errors.iter().enumerate() {
            let text = error.to_string();
            assert!(matches!(error.cause(), Error::Timeout { .. }), "{error:?}");
            assert_eq!(rank == 1, matches!(error, Error::Poisoned(_)), "{error:?}");
            assert!(text.contains("all_reduce #2") && text.contains("rank 1 has not called it"), "{text}");
            assert!(text.contains("barrier #1") && !text.contains("rank 2"), "{text}");
        }
    });
}

#[test]
fn a_rank_that_fails_poisons_the_group_with_its_reason() {
    for kind in KINDS {
        let errors = world(kind, 3, options(), |group| {
            if group.rank() == 2 {
                thread::sleep(Duration::from_millis(100));
                group.abort("out of memory");
            }
            (group.barrier().unwrap_err(), group.barrier().unwrap_err())
        });
        for (first, later) in errors {
            assert_eq!(*first.cause(), Error::PeerLost { rank: 2, reason: "out of memory".into() });
            assert_eq!(later, Error::Poisoned(Box::new(first.cause().clone())));
        }
    }
}

#[test]
fn a_rank_that_finishes_early_is_named() {
    for kind in KINDS {
        for early in [0, 1] {
            let errors = world(kind, 3, options(), |group| {
                // A slow rank may receive the failure while it is still in the barrier.
                let met = group.barrier();
                if group.rank() == early {
                    met.unwrap();
                    return None;
                }
                Some(met.and_then(|()| group.all_reduce(&mut [1f32], ReduceOp::Sum)).unwrap_err())
            });
            for error in errors.into_iter().flatten() {
                let text = error.to_string();
                assert!(
                    text.contains(&format!("rank {early} left the group")) && text.contains("finished"),
                    "{text}"
                );
            }
        }
    }
}

#[test]
fn a_rank_that_has_finished_its_calls_may_leave() {
    world(Kind::Tcp, 8, options(), |group| {
        // Rank 7 receives from 6, 6 from 4 and 4 from 0, which has left when rank 6 calls.
        if group.rank() == 6 {
            thread::sleep(Duration::from_millis(1500));
        }
        let mut buffer = [group.rank() as f32; 10];
        group.broadcast(&mut buffer, 0).unwrap();
        assert_eq!(buffer, [0.0; 10]);
    });
}

#[test]
fn a_panic_on_one_rank_fails_all_ranks() {
    for kind in KINDS {
        let errors = world(kind, 2, options(), |group| {
            group.barrier().unwrap();
            if group.rank() == 1 {
                let_others_go_on();
                let died = thread::scope(|scope| {
                    scope
                        .spawn(move || {
                            let _group = group;
                            panic!("on purpose")
                        })
                        .join()
                        .is_err()
                });
                assert!(died);
                return None;
            }
            Some(group.barrier().unwrap_err())
        });
        assert!(
            errors[0].as_ref().unwrap().to_string().contains("rank 1 left the group: it panicked"),
            "{errors:?}"
        );
    }
}

#[test]
fn after_destroy_calls_fail() {
    for kind in KINDS {
        world(kind, 2, options(), |group| {
            let clone = group.clone();
            group.barrier().unwrap();
            group.destroy();
            assert!(clone.barrier().unwrap_err().to_string().contains("destroyed"));
        });
    }
}

#[test]
fn messages_that_differ_in_length_are_a_mismatch() {
    let errors = errors(2, |group| match group.rank() {
        0 => group.send(&[1u8; 10], 1),
        _ => group.recv(&mut [0u8; 11], 0),
    });
    for error in errors {
        assert!(matches!(error.cause(), Error::Mismatch { .. }), "{error:?}");
        assert!(error.to_string().contains("10 x U8") && error.to_string().contains("11 x U8"), "{error}");
    }
}

#[test]
fn a_missing_message_names_the_sender() {
    in_every_kind(|kind| {
        let errors = world(kind, 2, options().timeout(Duration::from_secs(1)), |group| {
            group.barrier().unwrap();
            match group.rank() {
                0 => {
                    thread::sleep(Duration::from_secs(3));
                    group.barrier().unwrap_err()
                }
                _ => group.recv(&mut [0u8; 11], 0).unwrap_err(),
            }
        });
        for error in errors {
            assert!(
                error.to_string().contains("rank 0 has not called it; its last call was barrier #1"),
                "{error}"
            );
        }
    });
}

#[test]
fn a_failure_in_one_group_fails_all_groups() {
    let errors = errors(4, |group| {
        let half = group.split(group.rank() as u64 / 2, 0).unwrap();
        group.barrier().unwrap();
        let_others_go_on();
        let count = if group.rank() == 3 { 2 } else { 1 };
        half.all_reduce(&mut vec![0f32; count], ReduceOp::Sum)
    });
    for error in errors {
        assert!(matches!(error.cause(), Error::Mismatch { rank_a: 2 | 3, rank_b: 2 | 3, .. }), "{error:?}");
    }
}

#[test]
fn a_call_on_the_same_group_inside_a_background_call_is_rejected() {
    let solo = ProcessGroup::solo();
    let outer = solo.clone();
    let work = solo.start(move |_| outer.barrier()).unwrap();
    assert!(work.wait().unwrap_err().to_string().contains("passed to the closure"));
    solo.barrier().unwrap();
}

#[test]
fn a_panic_in_the_background_fails_the_group_everywhere() {
    let errors = errors(2, |group| {
        if group.rank() == 1 {
            let work = group.start(|_| -> Result<()> { panic!("on purpose") }).unwrap();
            assert!(work.wait().is_err());
        }
        Err(group.barrier().unwrap_err())
    });
    for error in errors {
        assert!(error.to_string().contains("a background operation panicked"), "{error}");
    }
}
