//! Functions of the values at each index, compiled for the processor's widest vectors.

use crate::{
    parallel::{self, Room},
    simd::multiversion,
};
use rayon::prelude::*;

/// Values per part of the work.
const PART: usize = 1 << 13;

/// `of(x, y)` for every pair of values.
///
/// # Panics
/// If the lengths differ.
pub fn map<Y: Copy + Sync>(x: &[f32], y: &[Y], of: impl Fn(f32, Y) -> f32 + Copy + Sync + Send) -> Vec<f32> {
    let none = || vec![(); x.len()];
    update((x, y), &mut none(), &mut none(), move |x, y, (), ()| of(x, y))
}

/// `by(x, y, a, b)`, which may change `a` and `b`, for all values at the same index.
///
/// # Panics
/// If the lengths differ.
pub fn update<Y: Copy + Sync, A: Send, B: Send>(
    (x, y): (&[f32], &[Y]),
    a: &mut [A],
    b: &mut [B],
    by: impl Fn(f32, Y, &mut A, &mut B) -> f32 + Copy + Sync + Send,
) -> Vec<f32> {
    assert_eq!([y.len(), a.len(), b.len()], [x.len(); 3], "one length for all");
    let write = |[room]: [Room; 1]| {
        if parallel::alone(x.len().div_ceil(PART)) {
            return pass(x, y, a, b, room, by);
        }
        let (a, b, to) = (a.par_chunks_mut(PART), b.par_chunks_mut(PART), room.par_chunks_mut(PART));
        (x.par_chunks(PART), y.par_chunks(PART), a, b, to)
            .into_par_iter()
            .for_each(|(x, y, a, b, to)| pass(x, y, a, b, to, by));
    };
    // SAFETY: each pass writes all of its part.
    let [result] = unsafe { parallel::written([x.len()], write) };
    result
}

multiversion!(
    fn pass<Y: Copy, A, B, F: Fn(f32, Y, &mut A, &mut B) -> f32>(
        x: &[f32],
        y: &[Y],
        a: &mut [A],
        b: &mut [B],
        to: Room<'_>,
        by: F,
    ) {
        let updated = a.iter_mut().zip(b).zip(to);
        for ((x, y), ((a, b), to)) in x.iter().zip(y).zip(updated) {
            to.write(by(*x, *y, a, b));
        }
    }
);
