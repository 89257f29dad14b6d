//! The kernels against folds written out one element at a time.

use super::{
    kernel::{bf16_from_f32, bf16_to_f32},
    *,
};
use crate::Element;
use proptest::prelude::*;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Folds by `reduce_in_rank_order`, one rank by `reduce_partials`, and in turn by `fold_own`; all must give the bits of `fold`, which receives
/// the values of all ranks for one element.
fn check<T: Element>(op: ReduceOp, ranks: &[Vec<T>], fold: impl Fn(&[T]) -> T) {
    let count = ranks[0].len();
    let inputs: Vec<&[u8]> = ranks.iter().map(|rank| bytemuck::cast_slice(rank)).collect();
    let expected: Vec<T> =
        (0..count).map(|i| fold(&ranks.iter().map(|rank| rank[i]).collect::<Vec<_>>())).collect();
    let expected: &[u8] = bytemuck::cast_slice(&expected);

    // One byte off, so that no element is aligned.
    let mut out = vec![0xaa; expected.len() + 1];
    reduce_in_rank_order(T::DTYPE, op, &inputs, &mut out[1..]);
    assert_eq!(&out[1..], expected, "{op:?} over {} x {:?} at once", count, T::DTYPE);

    let alone: Vec<T> = ranks[0].iter().map(|value| fold(&[*value])).collect();
    out[1..].copy_from_slice(inputs[0]);
    let solo = Reduction { dtype: T::DTYPE, op, world: World { rank: 0, size: 1 } };
    reduce_partials(solo, &mut out[1..], |_| Ok(())).unwrap();
    assert_eq!(&out[1..], bytemuck::cast_slice::<T, u8>(&alone), "{op:?} of {} x {:?}", count, T::DTYPE);

    let mut partials = vec![0xaa; count * partial_size(T::DTYPE, op) + 1];
    for (rank, input) in inputs.iter().enumerate() {
        out[1..].copy_from_slice(input);
        let world = World { rank, size: inputs.len() };
        let reduction = Reduction { dtype: T::DTYPE, op, world };
        fold_own(reduction, &mut out[1..], &mut partials[1..]);
    }
    assert_eq!(&out[1..], expected, "{op:?} over {} x {:?} in turn", count, T::DTYPE);
}

macro_rules! float {
    ($name:ident, $t:ty, $wide:ty, $up:expr, $down:expr) => {
        fn $name(ranks: &[Vec<f64>]) {
            let ranks: Vec<Vec<$t>> =
                ranks.iter().map(|r| r.iter().map(|v| $down(*v as $wide)).collect()).collect();
            for op in OPS {
                check::<$t>(op, &ranks, |values| {
                    let wide = values.iter().map(|v| $up(*v));
                    let n = values.len() as $wide;
                    $down(match op {
                        ReduceOp::Sum => wide.reduce(|a, b| a + b).unwrap(),
                        ReduceOp::Mean => wide.reduce(|a, b| a + b).unwrap() / n,
                        ReduceOp::Product => wide.reduce(|a, b| a * b).unwrap(),
                        ReduceOp::Min => wide.reduce(<$wide>::min).unwrap(),
                        ReduceOp::Max => wide.reduce(<$wide>::max).unwrap(),
                    })
                });
            }
        }
    };
}
float!(check_f32, f32, f32, |v| v, |v| v);
float!(check_f64, f64, f64, |v| v, |v| v);
float!(check_f16, f16, f32, f16::to_f32, f16::from_f32);
float!(check_bf16, bf16, f32, bf16::to_f32, bf16::from_f32);

macro_rules! integer {
    ($name:ident, $t:ty) => {
        fn $name(ranks: &[Vec<i64>]) {
            let ranks: Vec<Vec<$t>> = ranks.iter().map(|r| r.iter().map(|v| *v as $t).collect()).collect();
            for op in OPS {
                check::<$t>(op, &ranks, |values| match op {
                    ReduceOp::Sum => values.iter().fold(0, |a, b| a.wrapping_add(*b)),
                    ReduceOp::Mean => {
                        (values.iter().map(|v| i128::from(*v)).sum::<i128>() / values.len() as i128) as $t
                    }
                    ReduceOp::Product => values.iter().fold(1, |a, b| a.wrapping_mul(*b)),
                    ReduceOp::Min => *values.iter().min().unwrap(),
                    ReduceOp::Max => *values.iter().max().unwrap(),
                });
            }
        }
    };
}
integer!(check_i32, i32);
integer!(check_i64, i64);
integer!(check_u8, u8);

/// One vector a rank, all of one length: some short, some around a block's end.
fn ranks<T: std::fmt::Debug>(value: impl Strategy<Value = T> + Clone) -> impl Strategy<Value = Vec<Vec<T>>> {
    let count = prop_oneof![0..5usize, 0..BLOCK, BLOCK - 2..BLOCK + 3, 2 * BLOCK - 1..2 * BLOCK + 2];
    (1..8usize, count).prop_flat_map(move |(world, count)| {
        prop::collection::vec(prop::collection::vec(value.clone(), count), world)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]

    #[test]
    fn floats_equal_a_serial_fold(ranks in ranks(-300.0..300.0f64)) {
        check_f32(&ranks);
        check_f64(&ranks);
        check_f16(&ranks);
        check_bf16(&ranks);
    }

    #[test]
    fn integers_equal_a_serial_fold(ranks in ranks(any::<i64>())) {
        check_i32(&ranks);
        check_i64(&ranks);
        check_u8(&ranks);
    }
}

/// Miri is too slow for all values.
const STRIDE: usize = if cfg!(miri) { 997 } else { 1 };

/// Every upper half of an f32 with lower halves on both sides of all ties.
fn rounding_cases() -> impl Iterator<Item = f32> {
    let low = [0u32, 1, 0x7fff, 0x8000, 0x8001, 0xffff];
    let high = (0..=u16::MAX).step_by(STRIDE);
    high.flat_map(move |high| low.map(|low| f32::from_bits(u32::from(high) << 16 | low)))
}

#[test]
fn bf16_converts_like_the_half_crate() {
    for value in rounding_cases() {
        let (ours, theirs) = (bf16_from_f32(value), bf16::from_f32(value));
        let equal = ours.to_bits() == theirs.to_bits() || ours.is_nan() && theirs.is_nan();
        assert!(equal, "{value:e}: {ours:e} {theirs:e}");
    }
    for value in (0..=u16::MAX).step_by(STRIDE).map(bf16::from_bits) {
        let (ours, theirs) = (bf16_to_f32(value), value.to_f32());
        assert!(ours.to_bits() == theirs.to_bits() || value.is_nan() && ours.is_nan(), "{value:e}: {ours:e}");
    }
}

#[test]
fn a_nan_on_any_rank_is_kept() {
    for position in 0..3 {
        let mut values = [1f32, 2.0, 3.0];
        values[position] = f32::NAN;
        for op in OPS {
            let inputs: Vec<&[u8]> = values.iter().map(bytemuck::bytes_of).collect();
            let mut out = 0f32;
            reduce_in_rank_order(DType::F32, op, &inputs, bytemuck::bytes_of_mut(&mut out));
            assert!(out.is_nan(), "{op:?} with a NaN on rank {position} gave {out}");
        }
    }
}

#[test]
fn outputs_may_be_the_inputs() {
    let (mut a, mut b) = (vec![1.5f32; 3000], vec![2.25f32; 3000]);
    let (a_ptr, b_ptr) = (a.as_mut_ptr().cast::<u8>(), b.as_mut_ptr().cast::<u8>());
    // SAFETY: both are 12000 bytes, and nothing else accesses them.
    unsafe {
        let input = |rank| [a_ptr.cast_const(), b_ptr][rank];
        reduce_pointers(DType::F32, ReduceOp::Sum, 2, &input, &[a_ptr, b_ptr], 12000);
    }
    assert_eq!(a, vec![3.75f32; 3000]);
    assert_eq!(b, a);
}

#[test]
#[should_panic(expected = "differ in length")]
fn lengths_must_agree() {
    reduce_in_rank_order(DType::U8, ReduceOp::Sum, &[&[1, 2], &[1]], &mut [0, 0]);
}
