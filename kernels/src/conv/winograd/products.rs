//! Transformed filters and their products with transformed images.

use super::POINTS;
use crate::{
    conv::{forward::Filters, geometry::Geometry},
    parallel::{self, Room},
    simd::{load, multiversion, store},
};
use pulp::Simd;
use std::ops::Range;

/// Vectors of tiles whose sums are in registers at a time.
pub const VECTORS: usize = 3;
/// Number of tiles in these vectors, with the widest ones.
pub const SPAN: usize = VECTORS * 16;
/// Filters at a time with 32 and with 16 registers.
pub const WIDE: usize = 8;
pub const NARROW: usize = 4;

/// Transformed filters in the order in which [`multiply`] reads them.
pub struct Packed {
    /// `[filters / F, points, channels, F]`
    pub points: Vec<f32>,
    pub bias: Vec<f32>,
    pub relu: bool,
}

impl Packed {
    pub fn new<const F: usize>(geometry: &Geometry, filters: &Filters) -> Self {
        let blocks = geometry.filters.div_ceil(F);
        let one = |(): &mut (), block: Range<usize>, to: Room| {
            transform::<F>(geometry, filters, block.start * F, to);
        };
        // SAFETY: all points of all channels are written.
        let points = unsafe { parallel::build([blocks, 1], POINTS * geometry.channels * F, || (), one) };
        Self { points, bias: filters.padded_bias(blocks * F), relu: filters.relu }
    }
}

multiversion!(
    /// Transforms the 3 × 3 kernels of `F` filters from `first` to `[points, channels, F]`.
    fn transform<S: Simd, const F: usize>(
        _simd: S,
        geometry: &Geometry,
        filters: &Filters<'_>,
        first: usize,
        to: Room<'_>,
    ) {
        for channel in 0..geometry.channels {
            let mut kernel = [[0.0; F]; 9];
            filters.taps(geometry, first, channel, &mut kernel);
            let columns = [0, 1, 2].map(|row| line([0, 1, 2].map(|column| kernel[row * 3 + column])));
            for point in 0..4 {
                let values = line(columns.map(|row| row[point]));
                for row in 0..4 {
                    let at = ((row * 4 + point) * geometry.channels + channel) * F;
                    to[at..at + F].write_copy_of_slice(&values[row]);
                }
            }
        }
    }
);

/// Transforms one row or column of `F` kernels.
#[inline(always)]
fn line<const F: usize>([a, b, c]: [[f32; F]; 3]) -> [[f32; F]; 4] {
    let mut middle = [[0.0; F]; 2];
    for at in 0..F {
        middle[0][at] = (a[at] + b[at] + c[at]) / 2.0;
        middle[1][at] = (a[at] - b[at] + c[at]) / 2.0;
    }
    [a, middle[0], middle[1], c]
}

/// Multiplies `filters`, `[channels, F]`, with `V` vectors of tiles of `image` at one point.
///
/// `bias` is added.
///
/// # Safety
/// `image` must have `V` vectors for each channel, and `to` for each filter, `POINTS * SPAN` apart.
#[inline(always)]
pub unsafe fn multiply<S: Simd, const F: usize, const V: usize>(
    simd: S,
    filters: &[f32],
    mut image: *const f32,
    bias: [f32; F],
    to: *mut f32,
) {
    // Plain loops and pointers, as in direct convolution.
    let mut sums = [[simd.splat_f32s(0.0); V]; F];
    for filter in 0..F {
        sums[filter] = [simd.splat_f32s(bias[filter]); V];
    }
    let mut weights = filters.as_ptr();
    for _ in 0..filters.len() / F {
        let mut values = [simd.splat_f32s(0.0); V];
        for vector in 0..V {
            // SAFETY: the caller's contract.
            values[vector] = unsafe { load::<S>(image.add(vector * S::F32_LANES)) };
        }
        for filter in 0..F {
            // SAFETY: there are `F` for each channel.
            let weight = simd.splat_f32s(unsafe { *weights.add(filter) });
            for vector in 0..V {
                sums[filter][vector] = simd.mul_add_e_f32s(weight, values[vector], sums[filter][vector]);
            }
        }
        (weights, image) = (weights.wrapping_add(F), image.wrapping_add(V * S::F32_LANES));
    }
    for filter in 0..F {
        for vector in 0..V {
            // SAFETY: the caller's contract.
            unsafe {
                store::<S>(to.add(filter * POINTS * SPAN + vector * S::F32_LANES), sums[filter][vector])
            };
        }
    }
}
