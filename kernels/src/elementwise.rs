//! Functions of the values at each index, compiled for the processor's widest vectors.

use crate::{
    parallel::{self, Room},
    simd::{self, multiversion},
};
use rayon::prelude::*;

/// Values per part of the work.
const PART: usize = 1 << 13;

/// `of(x, y)` for every pair of values.
///
/// # Panics
/// If the lengths differ.
pub fn map<Y: Copy + Sync>(x: &[f32], y: &[Y], of: impl Fn(f32, Y) -> f32 + Copy + Sync + Send) -> Vec<f32> {
    assert_eq!(x.len(), y.len(), "one length for both");
    let write = |start: usize, to: Room<'_>| {
        let range = start..start + to.len();
        map_part(&x[range.clone()], &y[range], to, of);
    };
    // One type for all functions, so that the distribution over threads is compiled once.
    let write: &(dyn Fn(usize, Room<'_>) + Sync + Send) = &write;
    // SAFETY: the parts write all values.
    let [result] =
        unsafe { parallel::written([x.len()], |[room]: [Room; 1]| parallel::parts(room, PART, write)) };
    result
}

multiversion!(
    fn map_part<Y: Copy, F: Fn(f32, Y) -> f32>(x: &[f32], y: &[Y], to: Room<'_>, of: F) {
        for ((x, y), to) in x.iter().zip(y).zip(to) {
            to.write(of(*x, *y));
        }
    }
);

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

/// Sum of `of(x, y)` over every pair of values, the same for every number of threads.
///
/// # Panics
/// If the lengths differ.
pub fn total(x: &[f32], y: &[f32], of: impl Fn(f32, f32) -> f32 + Copy + Sync + Send) -> f32 {
    assert_eq!(x.len(), y.len(), "one length for both");
    let sum = |part: usize| {
        let range = part * PART..x.len().min((part + 1) * PART);
        f64::from(part_of_total(&x[range.clone()], &y[range], of))
    };
    let sum: &(dyn Fn(usize) -> f64 + Sync + Send) = &sum;
    sum_of_parts(x.len().div_ceil(PART), sum) as f32
}

/// One function for all losses, so that the distribution over threads is compiled once.
fn sum_of_parts(parts: usize, sum: &(dyn Fn(usize) -> f64 + Sync + Send)) -> f64 {
    parallel::each(parts, || (), |(), part| sum(part)).into_iter().sum()
}

multiversion!(
    fn part_of_total<F: Fn(f32, f32) -> f32>(x: &[f32], y: &[f32], of: F) -> f32 {
        simd::sum(x, y, of)
    }
);

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
