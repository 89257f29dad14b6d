//! Passes of batch normalisation: sums over the channels of a batch and an affine map per channel, also followed by
//! ReLU, or by ReLU and max-pooling.
//!
//! Batches are `[batch, channels, positions]`.

mod pooled;
mod relu;
#[cfg(test)]
mod tests;

pub use crate::affine::{Affine, Centred};
pub use pooled::PooledGradient;
pub use relu::{ReluGradient, relu};

use crate::{
    parallel,
    simd::{arch, load},
};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// Sums `a` and `a` × `b` over each channel.
///
/// Planes are summed in f32 and their sums in f64, in image order.
///
/// # Panics
/// If there are fewer values than the shape `[batch, channels, positions]` requires.
pub fn sums(a: Centred, b: Centred, [batch, channels, positions]: [usize; 3]) -> Vec<[f64; 2]> {
    let parts = parallel::each(
        batch,
        || (),
        |(), image| {
            let mut sums = Vec::with_capacity(channels);
            arch().dispatch(Sums {
                a,
                b,
                planes: image * channels..(image + 1) * channels,
                positions,
                sums: &mut sums,
            });
            sums
        },
    );
    totals(parts, channels)
}

/// Adds up the images' sums in image order.
fn totals(images: Vec<Vec<[f32; 2]>>, channels: usize) -> Vec<[f64; 2]> {
    let mut totals = vec![[0.0; 2]; channels];
    for sums in images {
        for (total, sums) in totals.iter_mut().zip(sums) {
            total[0] += f64::from(sums[0]);
            total[1] += f64::from(sums[1]);
        }
    }
    totals
}

struct Sums<'a> {
    a: Centred<'a>,
    b: Centred<'a>,
    planes: std::ops::Range<usize>,
    positions: usize,
    sums: &'a mut Vec<[f32; 2]>,
}

impl WithSimd for Sums<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self { a, b, planes, positions, sums } = self;
        let channels = planes.len();
        for plane in planes {
            let ((a, centre_a), (b, centre_b)) =
                (a.plane(plane, channels, positions), b.plane(plane, channels, positions));
            sums.push(plane_sums(simd, a, centre_a, b, centre_b));
        }
    }
}

#[inline(always)]
fn plane_sums<S: Simd>(simd: S, a: &[f32], centre_a: f32, b: &[f32], centre_b: f32) -> [f32; 2] {
    let (wide_a, wide_b) = (simd.splat_f32s(centre_a), simd.splat_f32s(centre_b));
    let (mut first, mut second) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
    let len = a.len().min(b.len());
    let whole = len - len % S::F32_LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: a vector fits between here and `whole`, which is at most the length of both.
        let (a, b) = unsafe { (load::<S>(a.as_ptr().add(at)), load::<S>(b.as_ptr().add(at))) };
        let a = simd.sub_f32s(a, wide_a);
        first = simd.add_f32s(first, a);
        second = simd.mul_add_e_f32s(a, simd.sub_f32s(b, wide_b), second);
        at += S::F32_LANES;
    }
    let (mut first, mut second) = (simd.reduce_sum_f32s(first), simd.reduce_sum_f32s(second));
    for at in whole..len {
        first += a[at] - centre_a;
        second += (a[at] - centre_a) * (b[at] - centre_b);
    }
    [first, second]
}

/// Applies each channel's affine map to `a`, and to `b` if there is one.
///
/// # Panics
/// If there are fewer values than the shape requires, fewer maps than channels, or the result does not
/// fit in memory.
pub fn apply(
    lines: &[Affine],
    a: Centred,
    b: Option<Centred>,
    [batch, channels, positions]: [usize; 3],
) -> Vec<f32> {
    let one = |(): &mut (), image: usize, to: &mut [MaybeUninit<f32>]| {
        arch().dispatch(Lines { lines: &lines[..channels], a, b, first: image * channels, positions, to });
    };
    let len = parallel::values(&[channels, positions]).expect("an image that fits in memory");
    // SAFETY: an image has a whole number of planes, and every one is written.
    unsafe { parallel::build(batch, len, || (), one) }
}

struct Lines<'a> {
    lines: &'a [Affine],
    a: Centred<'a>,
    b: Option<Centred<'a>>,
    first: usize,
    positions: usize,
    to: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Lines<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { lines, a, b, first, positions, to } = self;
        for (channel, to) in to.chunks_exact_mut(positions).enumerate() {
            let Affine { factors, constant } = lines[channel];
            let (a, centre_a) = a.plane(first + channel, lines.len(), positions);
            match b.map(|b| b.plane(first + channel, lines.len(), positions)) {
                None => {
                    for (to, a) in to.iter_mut().zip(a) {
                        to.write((a - centre_a) * factors[0] + constant);
                    }
                }
                Some((b, centre_b)) => {
                    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                        to.write((a - centre_a) * factors[0] + (b - centre_b) * factors[1] + constant);
                    }
                }
            }
        }
    }
}
