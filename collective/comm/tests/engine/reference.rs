//! Serial reference for collectives, in rank order, and random data.

use burn_ddp_comm::{Element, ReduceOp};
use half::{bf16, f16};
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// Arithmetic of the reference for a type.
pub trait Reference: Element + PartialEq {
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

/// Input of rank `rank`.
pub fn data<T: Reference>(seed: u64, rank: usize, count: usize) -> Vec<T> {
    let mut rng = StdRng::seed_from_u64(seed ^ (rank as u64) << 32);
    (0..count).map(|_| T::random(&mut rng)).collect()
}

/// The reduction of all ranks' values in rank order.
pub fn serial<T: Reference>(op: ReduceOp, all: &[Vec<T>]) -> Vec<T> {
    (0..all[0].len())
        .map(|i| {
            let wide = all.iter().map(|rank| rank[i].widen()).reduce(|a, b| T::fold(op, a, b)).unwrap();
            T::finish(op, all.len(), wide)
        })
        .collect()
}

/// The bytes of `values`, to compare bits.
pub fn bytes<T: Element>(values: &[T]) -> &[u8] {
    bytemuck::cast_slice(values)
}
