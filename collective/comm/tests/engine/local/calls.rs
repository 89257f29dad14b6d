//! Messages between ranks, and many calls of many ranks.

use super::{TRANSPORTS, call, on_all};
use burn_ddp_comm::{DType, ReduceOp, communicator::Call};
use proptest::prelude::*;

/// A message between two ranks.
fn message(bytes: usize, seq: u64, from: usize, to: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + from * 31 + to * 13) as u8 ^ seq as u8).collect()
}

/// Sizes below and above the capacity of an outbox.
fn message_bytes() -> impl Strategy<Value = usize> {
    if cfg!(miri) {
        (1000..3000usize).boxed()
    } else {
        prop_oneof![0..300usize, 65_000..66_000usize, 131_000..132_000usize].boxed()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 24 }))]

    /// Every rank sends to all others, then receives from all.
    #[test]
    fn messages(world in 2..5usize, bytes in message_bytes()) {
        for make in TRANSPORTS {
            let group = make(world);
            let message = |from, to| message(bytes, 1, from, to);
            let call = |seq, from| Call { dtype: DType::U8, root: Some(from), ..call(seq, "send_recv", bytes) };
            for sender in 0..world {
                on_all(&group, |rank, communicator| {
                    for other in (0..world).filter(|other| *other != sender) {
                        if rank == sender {
                            communicator.send(&call(1, sender), other, &message(sender, other)).unwrap();
                        }
                        if rank == other {
                            let mut data = vec![0; bytes];
                            communicator.recv(&call(1, sender), sender, &mut data).unwrap();
                            assert!(data == message(sender, rank));
                        }
                    }
                });
            }
        }
    }
}

#[test]
fn small_messages_can_cross_each_other_and_collectives() {
    for make in TRANSPORTS {
        let group = make(2);
        on_all(&group, |rank, communicator| {
            for seq in 1..if cfg!(miri) { 4 } else { 200u64 } {
                let message = |from: usize| message(400, seq, from, 1 - from);
                let passing = |from| Call { root: Some(from), ..call(seq, "send_recv", 100) };
                communicator.send(&passing(rank), 1 - rank, &message(rank)).unwrap();
                communicator.barrier(&call(seq, "barrier", 0)).unwrap();
                let mut data = vec![0; 400];
                communicator.recv(&passing(1 - rank), 1 - rank, &mut data).unwrap();
                assert!(data == message(1 - rank));
            }
        });
    }
}

#[test]
fn sixty_four_ranks_make_a_thousand_calls() {
    let (world, rounds) = if cfg!(miri) { (5, 5) } else { (64, 1000) };
    for make in TRANSPORTS {
        let group = make(world);
        on_all(&group, |rank, communicator| {
            for seq in 1..=rounds {
                let call = Call { reduce: Some(ReduceOp::Sum), ..call(seq, "all_reduce", 8) };
                let mut buffer = [(rank as u64 + seq) as f32; 8];
                communicator.all_reduce(&call, bytemuck::cast_slice_mut(&mut buffer)).unwrap();
                let sum = (0..world as u64).map(|rank| rank + seq).sum::<u64>();
                assert_eq!(buffer, [sum as f32; 8]);
            }
        });
    }
}
