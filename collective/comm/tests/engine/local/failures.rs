//! Ranks that disagree, are absent, leave or abort: every rank soon returns an error.

use super::{Group, TRANSPORTS, call, on_all};
use burn_ddp_comm::{Communicator, DType, Error, ReduceOp, Result, communicator::Call};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Barrier, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Element counts of a small and of a large call.
const COUNTS: [usize; 2] = if cfg!(miri) { [10, 600] } else { [10, 300_000] };

fn summing(seq: u64, count: usize, timeout: Duration) -> Call {
    Call { reduce: Some(ReduceOp::Sum), timeout, ..call(seq, "all_reduce", count) }
}

fn all_reduce(communicator: &dyn Communicator, call: &Call) -> Result<()> {
    communicator.all_reduce(call, &mut vec![0; call.count * call.dtype.size()])
}

#[test]
fn every_kind_of_mismatch_is_an_error_on_all_ranks_with_both_calls() {
    let base = summing(5, 1000, Duration::from_secs(60));
    let others = [
        Call { seq: 6, ..base.clone() },
        Call { operation: "broadcast".into(), ..base.clone() },
        Call { dtype: DType::I32, ..base.clone() },
        Call { count: 300_000, ..base.clone() },
        Call { reduce: Some(ReduceOp::Max), ..base.clone() },
        Call { root: Some(0), ..base.clone() },
    ];
    for make in TRANSPORTS {
        for other in &others {
            let group = make(3);
            let results = on_all(&group, |rank, communicator| match (rank, &*other.operation) {
                (2, "broadcast") => {
                    let call = Call { root: Some(0), ..other.clone() };
                    communicator.broadcast(&call, &mut vec![0; 4000])
                }
                (2, _) => all_reduce(communicator, other),
                _ => all_reduce(communicator, &base),
            });
            for result in results {
                let Err(Error::Mismatch { rank_a: 0, call_a, rank_b: 2, call_b }) = result else {
                    panic!("{other}: {result:?}");
                };
                assert_eq!(call_a, base.to_string());
                assert!(call_b != call_a && call_b.starts_with(&*other.operation), "{call_b}");
            }
            // The group is unusable.
            let again = all_reduce(group[1].as_ref(), &summing(7, 1, Duration::from_secs(60)));
            assert!(matches!(again, Err(Error::Aborted)), "{again:?}");
        }
    }
}

/// The method determines which memory ranks access, whatever the name of the call.
#[test]
fn two_methods_under_one_name_are_a_mismatch_on_all_ranks() {
    type Method = fn(&dyn Communicator, &Call, Vec<u8>) -> Result<()>;
    let methods: [(&str, Method); 7] = [
        ("all_gather", |rank, call, mine| rank.all_gather(call, &mine, &mut [&mine[..]; 3].concat())),
        ("barrier", |rank, call, _| rank.barrier(call)),
        ("broadcast", |rank, call, mut mine| rank.broadcast(call, &mut mine)),
        ("reduce", |rank, call, mut mine| rank.reduce(call, &mut mine)),
        ("reduce_scatter", |rank, call, mut mine| rank.reduce_scatter(call, &mut mine)),
        ("gather", |rank, call, mine| rank.gather(call, &mine, &mut [&mine[..]; 3].concat())),
        ("scatter", |rank, call, mut mine| {
            let all = [&mine[..]; 3].concat();
            rank.scatter(call, &all, &mut mine)
        }),
    ];
    for make in TRANSPORTS {
        for (name, method) in methods {
            for count in COUNTS.map(|count| count * 3) {
                let call = Call { root: Some(0), ..summing(1, count, Duration::from_secs(60)) };
                let group = make(3);
                let results = on_all(&group, |rank, communicator| match rank {
                    2 => method(communicator, &call, vec![0; count * 4]),
                    _ => all_reduce(communicator, &call),
                });
                for result in results {
                    let Err(Error::Mismatch { rank_a: 0, call_a, rank_b: 2, call_b }) = result else {
                        panic!("all_reduce with {name} of {count}: {result:?}");
                    };
                    assert_eq!(call_a, format!("{call} through all_reduce"));
                    assert_eq!(call_b, format!("{call} through {name}"));
                }
            }
        }
    }
}

#[test]
fn absent_ranks_are_named_at_the_deadline() {
    for make in TRANSPORTS {
        for count in COUNTS {
            let group = make(4);
            // Long enough for the ranks that arrive, short enough for a test.
            let deadline = if cfg!(miri) { Duration::from_secs(10) } else { Duration::from_secs(1) };
            let call = summing(2, count, deadline);
            let results = on_all(&group, |rank, communicator| {
                all_reduce(communicator, &summing(1, count, Duration::from_secs(60)))?;
                if [0, 2].contains(&rank) { Ok(()) } else { all_reduce(communicator, &call) }
            });
            for rank in [1, 3] {
                let Err(Error::Timeout { call: named, absent, .. }) = &results[rank] else {
                    panic!("rank {rank}: {:?}", results[rank])
                };
                assert_eq!((named, &**absent), (&call.to_string(), "waiting for ranks 0, 2"));
            }
        }
    }
}

#[test]
fn a_rank_that_leaves_is_reported_as_lost() {
    for make in TRANSPORTS {
        for count in COUNTS {
            let mut group = make(3);
            let leaver = Mutex::new(group.pop());
            let start = Barrier::new(3);
            thread::scope(|scope| {
                scope.spawn(|| {
                    let rank = leaver.lock().unwrap().take().unwrap();
                    all_reduce(rank.as_ref(), &summing(1, count, Duration::from_secs(60))).unwrap();
                    start.wait();
                });
                for rank in &group {
                    scope.spawn(|| {
                        all_reduce(rank.as_ref(), &summing(1, count, Duration::from_secs(60))).unwrap();
                        start.wait();
                        let begun = Instant::now();
                        let result = all_reduce(rank.as_ref(), &summing(2, count, Duration::from_secs(60)));
                        assert!(matches!(result, Err(Error::PeerLost { rank: 2, .. })), "{result:?}");
                        assert!(begun.elapsed() < Duration::from_secs(30));
                    });
                }
            });
        }
    }
}

#[test]
fn an_abort_ends_the_call_of_its_rank_and_later_ones() {
    for make in TRANSPORTS {
        let group = make(2);
        let call = summing(1, 10, Duration::from_secs(600));
        let waiting = thread::scope(|scope| {
            let waiting = scope.spawn(|| all_reduce(group[0].as_ref(), &call));
            thread::sleep(Duration::from_millis(50));
            group[0].abort();
            waiting.join().unwrap()
        });
        let late = all_reduce(group[0].as_ref(), &call);
        assert!(
            matches!([&waiting, &late], [Err(Error::Aborted), Err(Error::Aborted)]),
            "{waiting:?} {late:?}"
        );
    }
}

/// Ranks are aborted at different times during large calls and free their buffers at once.
///
/// Miri and address sanitizers detect accesses to a freed buffer.
#[test]
fn buffers_are_not_accessed_after_a_failure() {
    let rounds = if cfg!(miri) { 4 } else { 30 };
    for make in TRANSPORTS {
        for round in 0..rounds {
            let group = make(3);
            let results = on_all(&group, |rank, communicator| {
                for seq in 1..10_000 {
                    let call = summing(seq, COUNTS[1], Duration::from_secs(60));
                    let mut buffer = vec![rank as f32; COUNTS[1]];
                    let result = communicator.all_reduce(&call, bytemuck::cast_slice_mut(&mut buffer));
                    if result.is_err() {
                        buffer.fill(-1.0);
                        thread::yield_now();
                        assert!(buffer.iter().all(|v| *v == -1.0), "written to after the call");
                        return result;
                    }
                    assert!(buffer.iter().all(|v| *v == 3.0));
                    if rank == round % 3 && seq == 3 {
                        group.iter().for_each(|rank| rank.abort());
                    }
                }
                Ok(())
            });
            assert!(results.iter().all(Result::is_err), "{results:?}");
        }
    }
}

#[test]
fn invalid_arguments_are_rejected_before_any_rank_waits() {
    for make in TRANSPORTS {
        let group = make(2);
        let rank = group[0].as_ref();
        let call = summing(1, 10, Duration::from_secs(60));
        let refusals = [
            rank.all_reduce(&call, &mut [0; 39]),
            rank.all_reduce(&Call { reduce: None, ..call.clone() }, &mut [0; 40]),
            rank.broadcast(&call, &mut [0; 40]),
            rank.broadcast(&Call { root: Some(2), ..call.clone() }, &mut [0; 40]),
            rank.all_gather(&call, &[0; 40], &mut [0; 40]),
            rank.reduce_scatter(&Call { count: 9, ..call.clone() }, &mut [0; 36]),
            rank.scatter(&Call { root: Some(0), ..call.clone() }, &[0; 40], &mut [0; 40]),
            rank.all_reduce(&Call { count: usize::MAX, ..call.clone() }, &mut [0; 40]),
            rank.send(&call, 0, &[0; 40]),
            rank.recv(&call, 2, &mut [0; 40]),
        ];
        for refusal in refusals {
            let Err(Error::Invalid(text)) = &refusal else { panic!("{refusal:?}") };
            assert!(text.contains("all_reduce #1"), "{text}");
        }
        // The group stays usable.
        on_all(&group, |_, rank| all_reduce(rank, &call).unwrap());
    }
}

#[test]
fn an_unexpected_message_is_a_mismatch() {
    for make in TRANSPORTS {
        let group = make(2);
        let sent = Call { root: Some(0), ..call(1, "send_recv", 5) };
        let expected = Call { count: 6, ..sent.clone() };
        group[0].send(&sent, 1, &[0; 20]).unwrap();
        let result = group[1].recv(&expected, 0, &mut [0; 24]);
        let Err(Error::Mismatch { rank_a: 0, call_a, rank_b: 1, call_b }) = result else {
            panic!("{result:?}")
        };
        assert_eq!((call_a, call_b), (sent.to_string(), expected.to_string()));
    }
}

#[test]
fn a_message_without_a_counterpart_names_the_peer() {
    for make in TRANSPORTS {
        let brief = Call { timeout: Duration::from_millis(100), ..call(1, "send_recv", 100_000) };
        let text = |result: Result<()>| {
            let Err(Error::Timeout { absent, .. }) = result else { panic!("{result:?}") };
            absent
        };
        let group: Group = make(3);
        assert!(text(group[1].recv(&brief, 2, &mut vec![0; 400_000])).contains("rank 2"));
        let group: Group = make(3);
        assert!(text(group[1].send(&brief, 0, &vec![0; 400_000])).contains("rank 0"));
    }
}

#[test]
fn a_rank_that_panics_is_reported_as_lost() {
    for make in TRANSPORTS {
        let mut group = make(2);
        let gone = group.pop();
        let unwound = catch_unwind(AssertUnwindSafe(move || {
            let _kept = gone;
            panic!("a user's mistake");
        }));
        assert!(unwound.is_err());
        let result = all_reduce(group[0].as_ref(), &summing(1, 10, Duration::from_secs(60)));
        assert!(matches!(result, Err(Error::PeerLost { rank: 1, .. })), "{result:?}");
    }
}
