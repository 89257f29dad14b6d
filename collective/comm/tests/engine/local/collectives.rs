//! Every collective is bit-identical to a serial reference.

use super::{DTYPES, Group, OPS, TRANSPORTS, call, on_all, threads};
use burn_ddp_comm::{DType, ReduceOp, communicator::Call, reduce::reduce_in_rank_order};
use half::{bf16, f16};
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering};

/// Input of a rank: finite, of mixed magnitudes and signs, and different on every rank.
fn values(dtype: DType, count: usize, seed: u64, rank: usize) -> Vec<u8> {
    let mut state = seed ^ (rank as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 11
    };
    let mut bytes = Vec::with_capacity(count * dtype.size());
    for _ in 0..count {
        let bits = next();
        let real = (bits % 20_011) as f64 / 1_000.0 - 10.0;
        match dtype {
            DType::F32 => bytes.extend((real as f32).to_ne_bytes()),
            DType::F64 => bytes.extend(real.to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f64(real).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f64(real).to_ne_bytes()),
            DType::I32 => bytes.extend((bits as i32).to_ne_bytes()),
            DType::I64 => bytes.extend(((bits << 11) as i64).to_ne_bytes()),
            DType::U8 => bytes.push(bits as u8),
        }
    }
    bytes
}

/// A randomly chosen case.
#[derive(Clone, Debug)]
struct Case {
    dtype: DType,
    op: ReduceOp,
    count: usize,
    root: usize,
    seed: u64,
}

impl Case {
    fn call(&self, seq: u64, operation: &'static str) -> Call {
        Call { dtype: self.dtype, ..call(seq, operation, self.count) }
    }

    fn reducing(&self, seq: u64, operation: &'static str) -> Call {
        Call { reduce: Some(self.op), ..self.call(seq, operation) }
    }

    fn inputs(&self, world: usize) -> Vec<Vec<u8>> {
        (0..world).map(|rank| values(self.dtype, self.count, self.seed, rank)).collect()
    }
}

/// Runs every collective once on `group` and compares the results.
fn check(group: &Group, case: &Case, seq: &AtomicU64) {
    let world = group.len();
    let root = case.root % world;
    let inputs = case.inputs(world);
    let flat = inputs.concat();
    let seq = seq.fetch_add(10, Ordering::Relaxed);
    let mut reduced = vec![0; inputs[0].len()];
    let slices: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
    reduce_in_rank_order(case.dtype, case.op, &slices, &mut reduced);

    let rooted = |call: Call| Call { root: Some(root), ..call };
    on_all(group, |rank, communicator| {
        let name = communicator.name();
        let mine = &inputs[rank];
        let mut buffer = mine.clone();
        communicator.all_reduce(&case.reducing(seq, "all_reduce"), &mut buffer).unwrap();
        assert!(buffer == reduced, "{name}: all_reduce on rank {rank} of {world}: {case:?}");

        let mut buffer = mine.clone();
        communicator.reduce(&rooted(case.reducing(seq + 1, "reduce")), &mut buffer).unwrap();
        let expected = if rank == root { &reduced } else { mine };
        assert!(buffer == *expected, "{name}: reduce on rank {rank} of {world}: {case:?}");

        let mut buffer = mine.clone();
        communicator.broadcast(&rooted(case.call(seq + 2, "broadcast")), &mut buffer).unwrap();
        assert!(buffer == inputs[root], "{name}: broadcast on rank {rank} of {world}: {case:?}");

        let mut out = vec![0xaa; flat.len()];
        communicator.all_gather(&case.call(seq + 3, "all_gather"), mine, &mut out).unwrap();
        assert!(out == flat, "{name}: all_gather on rank {rank} of {world}: {case:?}");

        let mut out = if rank == root { vec![0xaa; flat.len()] } else { Vec::new() };
        communicator.gather(&rooted(case.call(seq + 4, "gather")), mine, &mut out).unwrap();
        assert!(rank != root || out == flat, "{name}: gather on rank {rank} of {world}: {case:?}");

        let all: &[u8] = if rank == root { &flat } else { &[] };
        let mut out = vec![0xaa; mine.len()];
        communicator.scatter(&rooted(case.call(seq + 5, "scatter")), all, &mut out).unwrap();
        assert!(out == *mine, "{name}: scatter on rank {rank} of {world}: {case:?}");

        // Equal parts: every rank's values, `world` times.
        let mut buffer = mine.repeat(world);
        let call = Call { count: case.count * world, ..case.reducing(seq + 6, "reduce_scatter") };
        communicator.reduce_scatter(&call, &mut buffer).unwrap();
        for (part, buffer) in buffer.chunks(mine.len().max(1)).enumerate() {
            let expected = if part == rank { &reduced } else { mine };
            assert!(buffer == expected, "{name}: reduce_scatter on rank {rank} of {world}: {case:?}");
        }
        communicator.barrier(&self::call(seq + 7, "barrier", 0)).unwrap();
    });
}

#[test]
fn every_operation_and_type() {
    let counts: &[usize] = if cfg!(miri) { &[3] } else { &[0, 1, 1000] };
    for make in TRANSPORTS {
        for world in if cfg!(miri) { vec![2, 3] } else { vec![1, 2, 3, 4, 7] } {
            let (group, seq) = (make(world), AtomicU64::new(1));
            for (i, dtype) in DTYPES.into_iter().enumerate() {
                for op in OPS {
                    for count in counts.iter().copied() {
                        let case = Case { dtype, op, count, root: i, seed: 77 };
                        check(&group, &case, &seq);
                    }
                }
                if cfg!(miri) && i >= 2 {
                    break;
                }
            }
        }
    }
}

fn case() -> impl Strategy<Value = Case> {
    // Sizes in bytes: small ones, and around the ends of tiles, chunks, areas and pieces.
    let edges = prop::sample::select(vec![8 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20]);
    let bytes = prop_oneof![
        2 => 0..5000usize,
        3 => (edges, 0..300usize).prop_map(|(edge, off)| edge + off - 150),
        1 => 1_500_000..3_000_000usize,
    ];
    let bytes = if cfg!(miri) { (0..1500usize).boxed() } else { bytes.boxed() };
    (
        prop::sample::select(DTYPES.to_vec()),
        prop::sample::select(OPS.to_vec()),
        bytes,
        0..7usize,
        any::<u64>(),
    )
        .prop_map(|(dtype, op, bytes, root, seed)| Case {
            dtype,
            op,
            count: bytes / dtype.size(),
            root,
            seed,
        })
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

    /// Several calls in a row on one group, so that areas are reused.
    #[test]
    fn random_sizes(world in prop::sample::select(vec![1, 2, 3, 4, 7]), cases in prop::collection::vec(case(), if cfg!(miri) { 1..2 } else { 1..5 })) {
        for make in TRANSPORTS {
            let (group, seq) = (make(world), AtomicU64::new(1));
            cases.iter().for_each(|case| check(&group, case, &seq));
        }
    }

    /// Every rank sends to all others, then receives from all.
    #[test]
    fn messages(world in 2..5usize, bytes in message_bytes()) {
        for make in TRANSPORTS {
            let group = make(world);
            let message = |from, to| values(DType::U8, bytes, from as u64, to);
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
                let message = |from: usize| values(DType::F32, 100, seq, from);
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

#[test]
fn threads_reduce_in_place() {
    // Large enough for chunks that different ranks reduce.
    let count = if cfg!(miri) { 700 } else { 1 << 20 };
    let (group, seq) = (threads(3), AtomicU64::new(1));
    for seed in 0..if cfg!(miri) { 1 } else { 4 } {
        let case = Case { dtype: DType::F32, op: ReduceOp::Mean, count, root: 1, seed };
        check(&group, &case, &seq);
    }
}
