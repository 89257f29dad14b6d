//! The kernels against folds written out one element at a time.

use super::{
    kernel::{bf16_from_f32, bf16_to_f32},
    *,
};
use proptest::prelude::*;
use reference::{Reference, bytes, data, serial};

#[path = "../../tests/engine/reference.rs"]
mod reference;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

/// Folds by `reduce_with`, one rank by `reduce_partials`, and in turn by `fold_own`; all must give the bits of
/// the reference.
fn check<T: Reference>(world: usize, count: usize, seed: u64) {
    let ranks: Vec<Vec<T>> = (0..world).map(|rank| data(seed, rank, count)).collect();
    let inputs: Vec<&[u8]> = ranks.iter().map(|rank| bytes(rank)).collect();
    for op in OPS {
        let expected = serial(op, &ranks);
        let expected = bytes(&expected);

        // One byte off, so that no element is aligned.
        let mut out = [&[0xaa], inputs[0]].concat();
        let reduction = |rank, size| Reduction { dtype: T::DTYPE, op, world: World { rank, size } };
        reduce_with(reduction(0, world), &mut out[1..], &|rank| inputs[rank], None, true);
        assert_eq!(&out[1..], expected, "{op:?} over {count} x {:?} at once", T::DTYPE);

        let alone = serial(op, &ranks[..1]);
        out[1..].copy_from_slice(inputs[0]);
        reduce_partials(reduction(0, 1), &mut out[1..], |_| Ok(())).unwrap();
        assert_eq!(&out[1..], bytes(&alone), "{op:?} of {count} x {:?}", T::DTYPE);

        let mut partials = vec![0xaa; count * partial_size(T::DTYPE, op) + 1];
        for (rank, input) in inputs.iter().enumerate() {
            out[1..].copy_from_slice(input);
            fold_own(reduction(rank, world), &mut out[1..], &mut partials[1..]);
        }
        assert_eq!(&out[1..], expected, "{op:?} over {count} x {:?} in turn", T::DTYPE);
    }
}

/// Some short counts, some around a block's end.
fn count() -> impl Strategy<Value = usize> {
    prop_oneof![0..5usize, 0..BLOCK, BLOCK - 2..BLOCK + 3, 2 * BLOCK - 1..2 * BLOCK + 2]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]

    #[test]
    fn reductions_equal_a_serial_fold(world in 1..8usize, count in count(), seed: u64) {
        check::<f32>(world, count, seed);
        check::<f64>(world, count, seed);
        check::<f16>(world, count, seed);
        check::<bf16>(world, count, seed);
        check::<i32>(world, count, seed);
        check::<i64>(world, count, seed);
        check::<u8>(world, count, seed);
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
            let mut out = values[0];
            let reduction = Reduction { dtype: DType::F32, op, world: World { rank: 0, size: 3 } };
            let input = |rank: usize| bytemuck::bytes_of(&values[rank]);
            reduce_with(reduction, bytemuck::bytes_of_mut(&mut out), &input, None, true);
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
    let reduction = Reduction { dtype: DType::U8, op: ReduceOp::Sum, world: World { rank: 0, size: 2 } };
    reduce_with(reduction, &mut [1, 2], &|_| &[1], None, true);
}
