//! The reduction kernels, from the bytes of n ranks to one result.
//!
//! Every transport uses them. An element is the left fold `((r0 ∘ r1) ∘ r2) ∘ …` in rank order over a
//! *partial*, a type wide enough to lose nothing, and is rounded to its own type once, at the end:
//!
//! | type | sum, product, min, max | mean |
//! |---|---|---|
//! | f32, f64 | itself | itself, divided by n at the end |
//! | f16, bf16 | f32 | f32, divided by n before rounding |
//! | i32 | i32, wraps on overflow | i64, exact |
//! | i64 | i64, wraps on overflow | i128, exact |
//! | u8 | u8, wraps on overflow | u32, exact up to 2²⁴ ranks |
//!
//! Integer means round towards zero. A NaN on any rank makes the minimum and maximum NaN, so that a diverged
//! replica is not hidden. Buffers are bytes without alignment. The kernels process blocks over a partial on
//! the stack, which stays in the first-level cache, with loops that the compiler vectorises: build this crate
//! with `opt-level = 3`.

mod kernel;

use crate::{DType, ReduceOp, Result, World, communicator::Call};
use half::{bf16, f16};
use kernel::{Folds, Partial};

/// Elements reduced at a time: 4 KiB of f32.
const BLOCK: usize = if cfg!(miri) { 16 } else { 1024 };

/// What is computed over the ranks of a group.
#[doc(hidden)]
#[derive(Clone, Copy, Debug)]
pub struct Reduction {
    pub dtype: DType,
    pub op: ReduceOp,
    pub world: World,
}

impl Reduction {
    /// That of `call` on this rank.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the call has none.
    pub fn of(call: &Call, world: World) -> Result<Self> {
        Ok(Reduction { dtype: call.dtype, op: call.reduction()?, world })
    }
}

/// Calls `$function::<element, partial>` for the pair of types that `$dtype` and `$op` stand for.
macro_rules! dispatch {
    ($dtype:expr, $op:expr, $function:ident $arguments:tt) => {
        match ($dtype, $op) {
            (DType::F32, _) => $function::<f32, f32> $arguments,
            (DType::F64, _) => $function::<f64, f64> $arguments,
            (DType::F16, _) => $function::<f16, f32> $arguments,
            (DType::BF16, _) => $function::<bf16, f32> $arguments,
            (DType::I32, ReduceOp::Mean) => $function::<i32, i64> $arguments,
            (DType::I32, _) => $function::<i32, i32> $arguments,
            (DType::I64, ReduceOp::Mean) => $function::<i64, i128> $arguments,
            (DType::I64, _) => $function::<i64, i64> $arguments,
            (DType::U8, ReduceOp::Mean) => $function::<u8, u32> $arguments,
            (DType::U8, _) => $function::<u8, u8> $arguments,
        }
    };
}

/// Lets `act` reduce the partials of `buffer` over all ranks, then rounds them to the elements.
///
/// If the reduction is the mean, `act` computes the sum.
pub(crate) fn reduce_partials(
    reduction: Reduction,
    buffer: &mut [u8],
    act: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let Reduction { dtype, op, world } = reduction;
    dispatch!(dtype, op, reduce_partials_as(op, world.size, buffer, act))
}

/// Size in bytes of the partial of one element.
pub(crate) fn partial_size(dtype: DType, op: ReduceOp) -> usize {
    fn size_as<T: Folds<P>, P: Partial>() -> usize {
        size_of::<P>()
    }
    dispatch!(dtype, op, size_as())
}

/// Folds one rank's elements into the partials of all ranks before it.
///
/// The first rank writes the partials. The last rank replaces its elements by the result. Applied on rank
/// 0, 1, … in turn, it gives the bits of [`reduce_with`].
///
/// # Panics
/// If the buffers have different numbers of elements.
pub(crate) fn fold_own(reduction: Reduction, own: &mut [u8], partials: &mut [u8]) {
    let Reduction { dtype, op, world } = reduction;
    dispatch!(dtype, op, fold_own_as(op, world, own, partials))
}

/// Reduces `own` and the other ranks' `input`s. The result goes to `own`, or to `out` and, with `keep`, to `own`.
///
/// # Panics
/// If the lengths differ.
pub(crate) fn reduce_with<'a>(
    reduction: Reduction,
    own: &mut [u8],
    input: &dyn Fn(usize) -> &'a [u8],
    out: Option<&mut [u8]>,
    keep: bool,
) {
    let Reduction { dtype, op, world } = reduction;
    let (len, own) = (own.len(), own.as_mut_ptr());
    let pointer = |rank| {
        if rank == world.rank {
            return own.cast_const();
        }
        let input = input(rank);
        assert!(input.len() == len, "inputs differ in length");
        input.as_ptr()
    };
    let out = out.map_or(own, |out| {
        assert!(out.len() == len, "input and output differ in length");
        out.as_mut_ptr()
    });
    let outs = [out, own];
    let outs = if keep && out != own { &outs } else { &outs[..1] };
    // SAFETY: `len` bytes each, checked at every use, and borrowed for this call; `own` and `out`
    // exclusively, so that they coincide or overlap with nothing.
    unsafe { reduce_pointers(dtype, op, world.size, &pointer, outs, len) }
}

/// Reduces inputs of `bytes` bytes in rank order into several outputs at once, any of which may be one of the inputs.
///
/// # Panics
/// If there is no rank, or `bytes` is not a whole number of elements.
///
/// # Safety
/// Every pointer must be valid for `bytes` bytes during the call, for reads (inputs) or writes
/// (outputs), and nothing else may write to an input or access an output meanwhile. Two buffers
/// either coincide or do not overlap.
pub(crate) unsafe fn reduce_pointers(
    dtype: DType,
    op: ReduceOp,
    world: usize,
    input: &dyn Fn(usize) -> *const u8,
    outs: &[*mut u8],
    bytes: usize,
) {
    assert!(world > 0, "a reduction over no rank");
    assert!(bytes.is_multiple_of(dtype.size()), "{bytes} bytes are not a whole number of {dtype:?}");
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it, and the caller's contract is the callee's.
        return unsafe { reduce_avx2(dtype, op, world, input, outs, bytes) };
    }
    // SAFETY: as above.
    unsafe { dispatch!(dtype, op, reduce_as(op, world, input, outs, bytes)) }
}

/// The same code for wider vectors. Each element is computed separately, so that the bits are the same.
///
/// # Safety
/// The processor must have AVX2; otherwise as [`reduce_pointers`].
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn reduce_avx2(
    dtype: DType,
    op: ReduceOp,
    world: usize,
    input: &dyn Fn(usize) -> *const u8,
    outs: &[*mut u8],
    bytes: usize,
) {
    // SAFETY: the caller's contract is the callee's.
    unsafe { dispatch!(dtype, op, reduce_as(op, world, input, outs, bytes)) }
}

#[inline(always)]
fn fold_as<T: Folds<P>, P: Partial>(op: ReduceOp, acc: &mut [P], src: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => T::fold(acc, src, P::add),
        ReduceOp::Min => T::fold(acc, src, P::min),
        ReduceOp::Max => T::fold(acc, src, P::max),
        ReduceOp::Product => T::fold(acc, src, P::mul),
    }
}

#[inline(always)]
fn first_as<T: Folds<P>, P: Partial>(op: ReduceOp, acc: &mut [P], a: &[u8], b: &[u8]) {
    match op {
        ReduceOp::Sum | ReduceOp::Mean => T::first(acc, a, b, P::add),
        ReduceOp::Min => T::first(acc, a, b, P::min),
        ReduceOp::Max => T::first(acc, a, b, P::max),
        ReduceOp::Product => T::first(acc, a, b, P::mul),
    }
}

#[inline(always)]
fn finish_as<T: Folds<P>, P: Partial>(op: ReduceOp, world: usize, acc: &mut [P], out: &mut [u8]) {
    if op == ReduceOp::Mean {
        P::divide(acc, world);
    }
    T::store(acc, out);
}

/// # Safety
/// As [`reduce_pointers`].
#[inline(always)]
unsafe fn reduce_as<T: Folds<P>, P: Partial>(
    op: ReduceOp,
    world: usize,
    input: &dyn Fn(usize) -> *const u8,
    outs: &[*mut u8],
    bytes: usize,
) {
    let mut acc = [P::default(); BLOCK];
    let block = BLOCK * size_of::<T>();
    for at in (0..bytes).step_by(block) {
        let len = block.min(bytes - at);
        let acc = &mut acc[..len / size_of::<T>()];
        // SAFETY: within the buffer by the caller's contract. No output is borrowed while an input
        // is, so that the two may coincide.
        let input = |rank| unsafe { std::slice::from_raw_parts(input(rank).add(at), len) };
        if world == 1 {
            T::load(input(0), acc);
        } else {
            first_as::<T, P>(op, acc, input(0), input(1));
        }
        (2..world).for_each(|rank| fold_as::<T, P>(op, acc, input(rank)));
        let Some((first, others)) = outs.split_first() else { continue };
        // SAFETY: as above; outputs that coincide with one another are copied onto themselves,
        // which `copy` allows.
        unsafe {
            finish_as::<T, P>(op, world, acc, std::slice::from_raw_parts_mut(first.add(at), len));
            others.iter().for_each(|out| std::ptr::copy(first.add(at), out.add(at), len));
        }
    }
}

fn fold_own_as<T: Folds<P>, P: Partial>(op: ReduceOp, world: World, own: &mut [u8], partials: &mut [u8]) {
    let count = own.len() / size_of::<T>();
    assert!(partials.len() == count * size_of::<P>(), "elements and partials differ in number");
    let mut acc = [P::default(); BLOCK];
    let blocks = own.chunks_mut(BLOCK * size_of::<T>()).zip(partials.chunks_mut(BLOCK * size_of::<P>()));
    for (own, partials) in blocks {
        let acc = &mut acc[..own.len() / size_of::<T>()];
        if world.rank == 0 {
            T::load(own, acc);
        } else {
            bytemuck::cast_slice_mut(acc).copy_from_slice(partials);
            fold_as::<T, P>(op, acc, own);
        }
        match world.rank + 1 == world.size {
            true => finish_as::<T, P>(op, world.size, acc, own),
            false => partials.copy_from_slice(bytemuck::cast_slice(acc)),
        }
    }
}

fn reduce_partials_as<T: Folds<P>, P: Partial>(
    op: ReduceOp,
    world: usize,
    buffer: &mut [u8],
    act: impl FnOnce(&mut [u8]) -> Result<()>,
) -> Result<()> {
    let block = BLOCK * size_of::<T>();
    let mut partials = vec![P::default(); buffer.len() / size_of::<T>()];
    buffer.chunks(block).zip(partials.chunks_mut(BLOCK)).for_each(|(elements, acc)| T::load(elements, acc));
    act(bytemuck::cast_slice_mut(&mut partials))?;
    let blocks = partials.chunks_mut(BLOCK).zip(buffer.chunks_mut(block));
    blocks.for_each(|(acc, elements)| finish_as::<T, P>(op, world, acc, elements));
    Ok(())
}

#[cfg(test)]
mod tests;
