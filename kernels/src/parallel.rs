//! Parallel work in parts that do not depend on the number of threads.

use rayon::prelude::*;
use std::{mem::MaybeUninit, ops::Range};

/// Number of values of a tensor; `None` if 4-byte values would exceed the address space.
pub fn values(shape: &[usize]) -> Option<usize> {
    let values = shape.iter().try_fold(1usize, |values, length| values.checked_mul(*length))?;
    (values <= isize::MAX as usize / size_of::<f32>()).then_some(values)
}

/// Uninitialised values of a result.
pub type Room<'a, T = f32> = &'a mut [MaybeUninit<T>];

/// Vectors of these lengths, whose values `write` writes.
///
/// # Safety
/// `write` must write every value.
pub unsafe fn written<T, const N: usize>(lens: [usize; N], write: impl FnOnce([Room<T>; N])) -> [Vec<T>; N] {
    let mut all = lens.map(Vec::with_capacity);
    let mut rooms = all.iter_mut().zip(lens).map(|(values, len)| &mut values.spare_capacity_mut()[..len]);
    write(std::array::from_fn(|_| rooms.next().expect("as many as lengths")));
    for (values, len) in all.iter_mut().zip(lens) {
        // SAFETY: the caller's contract.
        unsafe { values.set_len(len) };
    }
    all
}

/// Results of `work(part)` for each of `parts` parts, in order.
///
/// `new` creates a thread's workspace.
pub fn each<W, T: Send>(
    parts: usize,
    new: impl Fn() -> W + Sync + Send,
    work: impl Fn(&mut W, usize) -> T + Sync + Send,
) -> Vec<T> {
    if alone(parts) {
        let mut workspace = new();
        return (0..parts).map(|part| work(&mut workspace, part)).collect();
    }
    (0..parts).into_par_iter().map_init(new, work).collect()
}

/// A vector of `rows` rows of `len` values, written by `write(range, values)` in ranges of `at_once` rows.
///
/// Without values, `write` is not called.
///
/// # Safety
/// `write` must write every value.
///
/// # Panics
/// If the values do not fit in memory.
pub unsafe fn build<W, T: Send + Copy>(
    rows: [usize; 2],
    len: usize,
    new: impl Fn() -> W + Sync + Send,
    write: impl Fn(&mut W, Range<usize>, Room<T>) + Sync + Send,
) -> Vec<T> {
    if len == 0 {
        return Vec::new();
    }
    let write = |workspace: &mut W, range, values: Room<T>, _: Room<()>, _: Room<()>| {
        write(workspace, range, values);
    };
    // SAFETY: the caller's contract.
    unsafe { build_three(rows, [len, 0, 0], new, write).0 }
}

/// Three matrices of `rows` rows of `lens` values, written by `write(range, first, second, third)` in ranges of `at_once` rows.
///
/// # Safety
/// `write` must write every value.
///
/// # Panics
/// If the values do not fit in memory.
pub unsafe fn build_three<W, A: Send + Copy, B: Send + Copy, C: Send + Copy>(
    [rows, at_once]: [usize; 2],
    lens: [usize; 3],
    new: impl Fn() -> W + Sync + Send,
    write: impl Fn(&mut W, Range<usize>, Room<A>, Room<B>, Room<C>) + Sync + Send,
) -> (Vec<A>, Vec<B>, Vec<C>) {
    // An overflow would shorten the parts, which `write` might then leave uninitialised.
    let totals = lens.map(|len| values(&[rows, len]).expect("a result that fits in memory"));
    let mut a = Vec::with_capacity(totals[0]);
    let mut b = Vec::with_capacity(totals[1]);
    let mut c = Vec::with_capacity(totals[2]);
    let rooms = (
        &mut a.spare_capacity_mut()[..totals[0]],
        &mut b.spare_capacity_mut()[..totals[1]],
        &mut c.spare_capacity_mut()[..totals[2]],
    );
    write_parts([rows, at_once], lens, rooms, new, write);
    // SAFETY: all rows were passed to `write`, and the caller guarantees that every value was written.
    unsafe {
        a.set_len(totals[0]);
        b.set_len(totals[1]);
        c.set_len(totals[2]);
    }
    (a, b, c)
}

/// Calls `write(range, first, second, third)` on ranges of `at_once` of the `rows` rows of three matrices.
///
/// Rows have `lens` values. The last range may be shorter.
///
/// # Panics
/// If the matrices do not have these lengths.
pub fn write_parts<W, A: Send, B: Send, C: Send>(
    [rows, at_once]: [usize; 2],
    [len_a, len_b, len_c]: [usize; 3],
    (a, b, c): (&mut [A], &mut [B], &mut [C]),
    new: impl Fn() -> W + Sync + Send,
    write: impl Fn(&mut W, Range<usize>, &mut [A], &mut [B], &mut [C]) + Sync + Send,
) {
    assert_eq!([a.len(), b.len(), c.len()], [rows * len_a, rows * len_b, rows * len_c], "whole rows");
    let parts = rows.div_ceil(at_once);
    let (mut a, mut b, mut c) = (a, b, c);
    let mut work = Vec::with_capacity(parts);
    for start in (0..rows).step_by(at_once) {
        let range = start..rows.min(start + at_once);
        work.push((
            range.clone(),
            a.split_off_mut(..range.len() * len_a).expect("rows of the first matrix"),
            b.split_off_mut(..range.len() * len_b).expect("rows of the second matrix"),
            c.split_off_mut(..range.len() * len_c).expect("rows of the third matrix"),
        ));
    }
    if alone(parts) {
        let mut workspace = new();
        work.into_iter().for_each(|(range, a, b, c)| write(&mut workspace, range, a, b, c));
    } else {
        work.into_par_iter()
            .for_each_init(new, |workspace, (range, a, b, c)| write(workspace, range, a, b, c));
    }
}

/// Calls `work(start, part)` on parts of `len` values, of which the last may be shorter.
pub fn parts<T: Send>(values: &mut [T], len: usize, work: impl Fn(usize, &mut [T]) + Sync + Send) {
    let len = len.max(1);
    if alone(values.len().div_ceil(len)) {
        return work(0, values);
    }
    values.par_chunks_mut(len).enumerate().for_each(|(part, values)| work(part * len, values));
}

/// Calls `work(number, first, second)` on corresponding parts of two slices, of which the last may be shorter.
pub fn pairs<A: Send, B: Send>(
    (a, len_a): (&mut [A], usize),
    (b, len_b): (&mut [B], usize),
    work: impl Fn(usize, &mut [A], &mut [B]) + Sync + Send,
) {
    let (len_a, len_b) = (len_a.max(1), len_b.max(1));
    if alone(a.len().div_ceil(len_a)) {
        let parts = a.chunks_mut(len_a).zip(b.chunks_mut(len_b)).enumerate();
        return parts.for_each(|(number, (a, b))| work(number, a, b));
    }
    let parts = a.par_chunks_mut(len_a).zip(b.par_chunks_mut(len_b)).enumerate();
    parts.for_each(|(number, (a, b))| work(number, a, b));
}

/// Whether one thread does all work: the data then stays in the cache of the calling core.
pub fn alone(parts: usize) -> bool {
    parts < 2 || rayon::current_num_threads() < 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn both_vectors_are_written_if_one_is_empty() {
        for parts in [1, 3] {
            let written = AtomicUsize::new(0);
            let write = |(): &mut (), part: Range<usize>, none: Room<u8>, both: Room, _: Room<()>| {
                assert!(none.is_empty());
                both.fill(MaybeUninit::new(part.start as f32));
                written.fetch_add(both.len(), Relaxed);
            };
            // SAFETY: both values of a part are written.
            let (none, both, _) = unsafe { build_three([parts, 1], [0, 2, 0], || (), write) };
            // Checked before the values are read.
            assert_eq!(written.into_inner(), 2 * parts);
            assert_eq!((none.len(), both.len()), (0, 2 * parts));
            assert!(both.iter().enumerate().all(|(at, value)| *value == (at / 2) as f32));
        }
    }

    #[test]
    #[should_panic(expected = "a result that fits in memory")]
    fn overflowing_lengths_are_rejected() {
        let write = |(): &mut (), _, values: Room| values.fill(MaybeUninit::new(0.0));
        // SAFETY: all values are written.
        drop(unsafe { build([2, 1], usize::MAX / 2 + 2, || (), write) });
    }
}
