//! Work cut into parts that do not depend on the number of threads.

use rayon::prelude::*;
use std::mem::MaybeUninit;

/// How many values a tensor of this shape has, if memory can hold as many numbers of four bytes.
pub fn values(shape: &[usize]) -> Option<usize> {
    let values = shape.iter().try_fold(1usize, |values, length| values.checked_mul(*length))?;
    (values <= isize::MAX as usize / size_of::<f32>()).then_some(values)
}

/// `work(part)` for each of `parts` parts, in their order. `new` makes what a thread works with.
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

/// A vector of `parts` parts of `len` values each, written by `write(part, values)`.
///
/// # Safety
/// `write` must write all of them.
///
/// # Panics
/// If they are more than memory can hold.
pub unsafe fn build<W, T: Send + Copy>(
    parts: usize,
    len: usize,
    new: impl Fn() -> W + Sync + Send,
    write: impl Fn(&mut W, usize, &mut [MaybeUninit<T>]) + Sync + Send,
) -> Vec<T> {
    if len == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise; a `()` needs no writing.
    unsafe {
        build_two(parts, [len, 1], new, |w, part, values, _: &mut [MaybeUninit<()>]| write(w, part, values)).0
    }
}

/// Two vectors, of `parts` parts of `lens` values each, written by `write(part, first, second)`.
///
/// # Safety
/// `write` must write all of them.
///
/// # Panics
/// If they are more than memory can hold.
pub unsafe fn build_two<W, A: Send + Copy, B: Send + Copy>(
    parts: usize,
    lens: [usize; 2],
    new: impl Fn() -> W + Sync + Send,
    write: impl Fn(&mut W, usize, &mut [MaybeUninit<A>], &mut [MaybeUninit<B>]) + Sync + Send,
) -> (Vec<A>, Vec<B>) {
    let [len_a, len_b] = lens;
    // A number that wrapped round would cut parts short, which `write` might leave as they are.
    let [total_a, total_b] = lens.map(|len| values(&[parts, len]).expect("a result that fits in memory"));
    let (mut a, mut b) = (Vec::with_capacity(total_a), Vec::with_capacity(total_b));
    let room_a = &mut a.spare_capacity_mut()[..total_a];
    let room_b = &mut b.spare_capacity_mut()[..total_b];
    // There are no chunks of nothing.
    if alone(parts) || lens.contains(&0) {
        let mut workspace = new();
        for part in 0..parts {
            let (a, b) = (&mut room_a[part * len_a..][..len_a], &mut room_b[part * len_b..][..len_b]);
            write(&mut workspace, part, a, b);
        }
    } else {
        room_a
            .par_chunks_mut(len_a)
            .zip(room_b.par_chunks_mut(len_b))
            .enumerate()
            .for_each_init(new, |workspace, (part, (a, b))| write(workspace, part, a, b));
    }
    // SAFETY: there were as many parts as announced, each of its full length, and the caller promises
    // that every part was written whole.
    unsafe {
        a.set_len(total_a);
        b.set_len(total_b);
    }
    (a, b)
}

/// `work` on slices of one length, in parts that lie side by side in them. What becomes of a value may depend
/// on the values beside it alone.
pub fn side_by_side<A: Send, B: Send>(
    [x, y]: [&[f32]; 2],
    a: &mut [A],
    b: &mut [B],
    work: impl Fn([&[f32]; 2], &mut [A], &mut [B]) + Sync + Send,
) {
    const PART: usize = 1 << 15;
    if alone(x.len().div_ceil(PART)) {
        return work([x, y], a, b);
    }
    (x.par_chunks(PART), y.par_chunks(PART), a.par_chunks_mut(PART), b.par_chunks_mut(PART))
        .into_par_iter()
        .for_each(|(x, y, a, b)| work([x, y], a, b));
}

/// With one thread, work stays where its data is: in the cache of the core that asks.
fn alone(parts: usize) -> bool {
    parts < 2 || rayon::current_num_threads() < 2
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    #[test]
    fn a_vector_beside_an_empty_one_is_written() {
        for parts in [1, 3] {
            let written = AtomicUsize::new(0);
            let write = |(): &mut (), part, none: &mut [MaybeUninit<u8>], both: &mut [MaybeUninit<f32>]| {
                assert!(none.is_empty());
                both.fill(MaybeUninit::new(part as f32));
                written.fetch_add(both.len(), Relaxed);
            };
            // SAFETY: both values of a part are written.
            let (none, both) = unsafe { build_two(parts, [0, 2], || (), write) };
            // Before the values are looked at.
            assert_eq!(written.into_inner(), 2 * parts);
            assert_eq!((none.len(), both.len()), (0, 2 * parts));
            assert!(both.iter().enumerate().all(|(at, value)| *value == (at / 2) as f32));
        }
    }

    #[test]
    #[should_panic(expected = "a result that fits in memory")]
    fn a_number_of_values_that_wraps_round_is_refused() {
        let write = |(): &mut (), _, values: &mut [MaybeUninit<f32>]| values.fill(MaybeUninit::new(0.0));
        // SAFETY: all values are written.
        drop(unsafe { build(2, usize::MAX / 2 + 2, || (), write) });
    }
}
