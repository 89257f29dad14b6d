//! Collectives over TCP against a serial reference: every type and reduction, several world sizes,
//! random lengths.

mod common;

use collective::{Element, ReduceOp};
use common::{options, world};
use half::{bf16, f16};
use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};
use rand::{RngExt, SeedableRng, rngs::StdRng};

const WORLDS: [usize; 5] = [1, 2, 3, 4, 7];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// How the reference computes with a type.
trait Reference: Element + PartialEq {
    type Wide: Copy;
    fn random(rng: &mut StdRng) -> Self;
    fn widen(self) -> Self::Wide;
    fn fold(op: ReduceOp, a: Self::Wide, b: Self::Wide) -> Self::Wide;
    fn finish(op: ReduceOp, world: usize, wide: Self::Wide) -> Self;
}

macro_rules! float {
    ($t:ty, $wide:ty, $widen:expr, $narrow:expr) => {
        impl Reference for $t {
            type Wide = $wide;
            fn random(rng: &mut StdRng) -> Self {
                $narrow(rng.random_range(-2.0..2.0))
            }
            fn widen(self) -> $wide {
                $widen(self)
            }
            fn fold(op: ReduceOp, a: $wide, b: $wide) -> $wide {
                match op {
                    ReduceOp::Sum | ReduceOp::Mean => a + b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Product => a * b,
                }
            }
            fn finish(op: ReduceOp, world: usize, wide: $wide) -> Self {
                $narrow(if op == ReduceOp::Mean { wide / world as $wide } else { wide })
            }
        }
    };
}
float!(f32, f32, |v| v, |v| v);
float!(f64, f64, |v| v, |v| v);
float!(f16, f32, f16::to_f32, f16::from_f32);
float!(bf16, f32, bf16::to_f32, bf16::from_f32);

macro_rules! integer {
    ($t:ty) => {
        impl Reference for $t {
            type Wide = i128;
            fn random(rng: &mut StdRng) -> Self {
                rng.random()
            }
            fn widen(self) -> i128 {
                self as i128
            }
            fn fold(op: ReduceOp, a: i128, b: i128) -> i128 {
                match op {
                    ReduceOp::Sum => (a + b) as $t as i128,
                    ReduceOp::Mean => a + b,
                    ReduceOp::Min => a.min(b),
                    ReduceOp::Max => a.max(b),
                    ReduceOp::Product => (a * b) as $t as i128,
                }
            }
            fn finish(op: ReduceOp, world: usize, wide: i128) -> Self {
                (if op == ReduceOp::Mean { wide / world as i128 } else { wide }) as $t
            }
        }
    };
}
integer!(i32);
integer!(i64);
integer!(u8);

fn data<T: Reference>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    let mut rng = StdRng::seed_from_u64(seed ^ (rank as u64) << 32);
    (0..count).map(|_| T::random(&mut rng)).collect()
}

fn serial<T: Reference>(op: ReduceOp, all: &[Vec<T>]) -> Vec<T> {
    (0..all[0].len())
        .map(|i| {
            let wide = all.iter().map(|rank| rank[i].widen()).reduce(|a, b| T::fold(op, a, b)).unwrap();
            T::finish(op, all.len(), wide)
        })
        .collect()
}

/// Every operation once with these lengths, on every rank, against the reference.
fn check<T: Reference>(group: &collective::ProcessGroup, op: ReduceOp, count: usize, seed: u64) {
    let (rank, size) = (group.rank(), group.world_size());
    let all: Vec<Vec<T>> = (0..size).map(|rank| data(seed, rank, count)).collect();

    let mut buffer = all[rank].clone();
    group.all_reduce(&mut buffer, op).unwrap();
    // Bits, not values: all ranks and the serial order must agree exactly.
    assert_eq!(
        bytemuck::cast_slice::<T, u8>(&buffer),
        bytemuck::cast_slice::<T, u8>(&serial(op, &all)),
        "{op:?} of {count} {:?}",
        T::DTYPE
    );

    let root = seed as usize % size;
    let mut buffer = all[rank].clone();
    group.broadcast(&mut buffer, root).unwrap();
    assert_eq!(buffer, all[root]);

    assert_eq!(group.all_gather(&all[rank]).unwrap(), all);

    let uneven: Vec<Vec<T>> = (0..size).map(|rank| data(seed, rank, (count * (rank + 1)) % 5000)).collect();
    assert_eq!(group.all_gather_v(&uneven[rank]).unwrap(), uneven);
    group.barrier().unwrap();
}

fn property<T: Reference>() {
    for size in WORLDS {
        // The same cases on every rank; each case is one round of collectives in one world.
        let length = prop_oneof![Just(0usize), Just(1), 0..40usize, 0..20_000usize, 100_000..300_000usize];
        let case = (length, prop::sample::select(&OPS[..]), any::<u64>());
        let mut runner = TestRunner::default();
        let cases: Vec<_> = (0..8).map(|_| case.new_tree(&mut runner).unwrap().current()).collect();
        world(size, options(), |group| {
            for (count, op, seed) in &cases {
                check::<T>(&group, *op, *count, *seed);
            }
            for count in [0, 1] {
                check::<T>(&group, ReduceOp::Sum, count, 1);
            }
        });
    }
}

#[test]
fn f32_matches_the_reference() {
    property::<f32>();
}
#[test]
fn f64_matches_the_reference() {
    property::<f64>();
}
#[test]
fn f16_matches_the_reference() {
    property::<f16>();
}
#[test]
fn bf16_matches_the_reference() {
    property::<bf16>();
}
#[test]
fn i32_matches_the_reference() {
    property::<i32>();
}
#[test]
fn i64_matches_the_reference() {
    property::<i64>();
}
#[test]
fn u8_matches_the_reference() {
    property::<u8>();
}

#[test]
fn many_ranks_go_through_the_tree() {
    world(11, options(), |group| {
        for count in [0, 1, 1000, 20_000] {
            for op in OPS {
                check::<f32>(&group, op, count, 7);
            }
        }
    });
}

#[test]
fn objects_travel() {
    let all = world(3, options(), |group| {
        let mine = (group.rank(), "x".repeat(group.rank()));
        let all = group.all_gather_object(&mine).unwrap();
        let root: Vec<u32> = group.broadcast_object(&vec![group.rank() as u32], 2).unwrap();
        (all, root)
    });
    for (gathered, root) in all {
        assert_eq!(gathered, [(0, "".to_string()), (1, "x".into()), (2, "xx".into())]);
        assert_eq!(root, [2]);
    }
}
