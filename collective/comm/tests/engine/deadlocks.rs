//! Detection of ranks that wait for each other in the groups of a family, long before the deadline.

use crate::common::{Kind, in_every_kind, options, world};
use burn_ddp_comm::{Error, ProcessGroup, ReduceOp};
use std::{
    sync::mpsc::channel,
    thread,
    time::{Duration, Instant},
};

/// Far below the calls' time limit of 40 s, far above the time that a loaded machine needs.
const SOON: Duration = Duration::from_secs(15);

/// Runs a world in which every rank must soon fail with a mismatch whose message contains `words`.
fn mismatch(kind: Kind, size: usize, words: &[&str], body: impl Fn(&ProcessGroup) -> Error + Sync) {
    let begun = Instant::now();
    let errors = world(kind, size, options().timeout(Duration::from_secs(40)), |group| body(&group));
    assert!(begun.elapsed() < SOON, "{kind:?}: took {:?}", begun.elapsed());
    for error in errors {
        assert!(matches!(error.cause(), Error::Mismatch { .. }), "{kind:?}: {error:?}");
        for word in words {
            assert!(error.to_string().contains(word), "{kind:?}: should name `{word}`: {error}");
        }
    }
}

#[test]
fn ranks_waiting_in_different_groups_are_a_mismatch() {
    in_every_kind(|kind| {
        let words = [
            "all_reduce #2 (4 x F32, Sum) in the group of all ranks",
            "all_gather #1 (1 x U8) in the group of metrics",
        ];
        mismatch(kind, 2, &words, |group| {
            let other = group.duplicate("metrics").unwrap();
            match group.rank() {
                0 => group.all_reduce(&mut [1f32; 4], ReduceOp::Sum).unwrap_err(),
                _ => other.all_gather(&[1u8]).unwrap_err(),
            }
        });
    });
}

#[test]
fn different_numbers_of_steps_are_a_mismatch() {
    in_every_kind(|kind| {
        // The last rank ends its epoch early and gathers its metrics.
        let words = [
            "all_reduce #4",
            "in the group of gradients",
            "all_gather #",
            "rank 2",
            "numbers of batches",
            "ShardedLoader",
        ];
        mismatch(kind, 3, &words, |group| {
            let gradients = group.duplicate("gradients").unwrap();
            let steps = if group.rank() == 2 { 3 } else { 5 };
            for _ in 0..steps {
                // In the background, like the reduction of gradients.
                let bucket = gradients.all_reduce_async(vec![1f32; 1000], ReduceOp::Mean).unwrap();
                if let Err(error) = bucket.wait() {
                    return error;
                }
            }
            group.all_gather(&[group.rank() as f32]).unwrap_err()
        });
    });
}

#[test]
fn a_call_that_another_thread_will_make_is_not_a_mismatch() {
    in_every_kind(|kind| {
        world(kind, 2, options(), |group| {
            let (a, b) = (group.split(0, 0).unwrap(), group.split(0, 0).unwrap());
            if group.rank() == 0 {
                a.barrier().unwrap();
                b.barrier().unwrap();
                return;
            }
            thread::scope(|scope| {
                scope.spawn(|| {
                    // The first call of this thread, after the server has asked the others several times.
                    thread::sleep(Duration::from_secs(5));
                    a.barrier().unwrap();
                });
                b.barrier().unwrap();
            });
        });
    });
}

#[test]
fn two_threads_may_share_a_family() {
    in_every_kind(|kind| {
        world(kind, 2, options(), |group| {
            let other = group.duplicate("metrics").unwrap();
            thread::scope(|scope| {
                scope.spawn(|| {
                    other.barrier().unwrap();
                    thread::sleep(Duration::from_secs(if group.rank() == 0 { 3 } else { 0 }));
                    other.barrier().unwrap();
                });
                group.barrier().unwrap();
                thread::sleep(Duration::from_secs(if group.rank() == 1 { 3 } else { 1 }));
                group.barrier().unwrap();
            });
        });
    });
}

#[test]
fn a_message_without_a_sender_is_a_mismatch() {
    in_every_kind(|kind| {
        mismatch(kind, 2, &["rank 0 called barrier #1", "rank 1 called send_recv #1"], |group| {
            match group.rank() {
                0 => group.barrier().unwrap_err(),
                _ => group.recv(&mut [0u8; 11], 0).unwrap_err(),
            }
        });
    });
}

#[test]
fn a_slow_rank_is_not_a_deadlock() {
    in_every_kind(|kind| {
        world(kind, 2, options(), |group| {
            let other = group.duplicate("metrics").unwrap();
            let mut sum = [1f32];
            if group.rank() == 1 {
                // The server asks rank 0 for its state several times during the call.
                thread::sleep(Duration::from_secs(4));
                other.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            } else {
                other.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
                group.all_reduce(&mut sum, ReduceOp::Sum).unwrap();
            }
            assert_eq!(sum, [4.0]);
        });
    });
}

#[test]
fn two_threads_of_a_rank_may_wait_in_two_groups() {
    in_every_kind(|kind| {
        world(kind, 2, options(), |group| {
            let (one, other) = (group.split(0, 0).unwrap(), group.split(0, 0).unwrap());
            // Both threads have made calls before. Then each rank is late in a different group.
            let (send, receive) = channel();
            thread::scope(|scope| {
                let mine = (group.rank() == 0, one.clone());
                scope.spawn(move || {
                    let (late, one) = mine;
                    one.barrier().unwrap();
                    send.send(()).unwrap();
                    thread::sleep(Duration::from_secs(if late { 4 } else { 0 }));
                    one.barrier().unwrap();
                });
                receive.recv().unwrap();
                other.barrier().unwrap();
                thread::sleep(Duration::from_secs(if group.rank() == 1 { 4 } else { 0 }));
                other.barrier().unwrap();
            });
            group.barrier().unwrap();
        });
    });
}

#[test]
fn a_background_call_behind_a_computing_thread_is_not_a_deadlock() {
    in_every_kind(|kind| {
        world(kind, 2, options(), |group| {
            let other = group.duplicate("metrics").unwrap();
            let bucket =
                (group.rank() == 0).then(|| group.all_reduce_async(vec![1f32; 10], ReduceOp::Sum).unwrap());
            if group.rank() == 0 {
                // Computes while its background call waits for rank 1, which waits for it in another group.
                thread::sleep(Duration::from_secs(4));
            }
            other.barrier().unwrap();
            let bucket =
                bucket.unwrap_or_else(|| group.all_reduce_async(vec![1f32; 10], ReduceOp::Sum).unwrap());
            assert_eq!(bucket.wait().unwrap(), [2.0; 10]);
        });
    });
}
