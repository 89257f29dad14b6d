//! Functions of corresponding values, compiled for the processor's widest vectors.

use crate::{parallel, simd::arch};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// `of(x, y)` for every pair of values.
///
/// # Panics
/// If the lengths differ.
pub fn map(x: &[f32], y: &[f32], of: impl Fn(f32, f32) -> f32 + Copy + Sync + Send) -> Vec<f32> {
    assert_eq!(x.len(), y.len(), "one length for both");
    let mut result = Vec::with_capacity(x.len());
    let room = &mut result.spare_capacity_mut()[..x.len()];
    let nothing = || vec![(); x.len()];
    parallel::side_by_side([x, y], room, &mut nothing(), &mut nothing(), |[x, y], to, _, _| {
        arch().dispatch(Pass { x, y, to, of });
    });
    // SAFETY: each pass writes all of its part.
    unsafe { result.set_len(x.len()) };
    result
}

struct Pass<'a, F> {
    x: &'a [f32],
    y: &'a [f32],
    to: &'a mut [MaybeUninit<f32>],
    of: F,
}

impl<F: Fn(f32, f32) -> f32> WithSimd for Pass<'_, F> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for ((x, y), to) in self.x.iter().zip(self.y).zip(self.to) {
            to.write((self.of)(*x, *y));
        }
    }
}
