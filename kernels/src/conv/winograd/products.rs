//! Transformed filters and their products with transformed images.

use super::POINTS;
use crate::{
    conv::{
        forward::{Filters, WIDE},
        shape::Shape,
    },
    simd::{load, store},
};
use pulp::Simd;

/// Maximum number of tiles whose sums are in registers at a time.
pub const SPAN: usize = WIDE.1 * 16;

/// Transformed filters in the order in which [`multiply`] reads them.
pub struct Packed {
    /// `[filters / F, points, channels, F]`
    pub points: Vec<f32>,
    pub bias: Vec<f32>,
    pub relu: bool,
}

impl Packed {
    pub fn new<const F: usize>(shape: &Shape, filters: &Filters) -> Self {
        let (channels, blocks) = (shape.channels, shape.filters.div_ceil(F));
        let mut points = vec![0.0; blocks * POINTS * channels * F];
        for at in 0..blocks * channels {
            let (block, channel) = (at / channels, at % channels);
            let kernel = std::array::from_fn(|tap| filters.weights_of::<F>(shape, block * F, channel, tap));
            for (point, values) in transformed(kernel).into_iter().enumerate() {
                points[((block * POINTS + point) * channels + channel) * F..][..F].copy_from_slice(&values);
            }
        }
        let bias = filters.padded_bias(blocks * F);
        Self { points, bias, relu: filters.relu }
    }
}

/// Transforms the 3 × 3 kernels of `F` filters.
fn transformed<const F: usize>(kernel: [[f32; F]; 9]) -> [[f32; F]; POINTS] {
    let sum = |a: [f32; F], b: [f32; F], c: [f32; F]| std::array::from_fn(|i| (a[i] + b[i] + c[i]) / 2.0);
    let difference =
        |a: [f32; F], b: [f32; F], c: [f32; F]| std::array::from_fn(|i| (a[i] - b[i] + c[i]) / 2.0);
    let line = |[a, b, c]: [[f32; F]; 3]| [a, sum(a, b, c), difference(a, b, c), c];
    let columns = [0, 1, 2].map(|row| line([0, 1, 2].map(|column| kernel[row * 3 + column])));
    let lines = [0, 1, 2, 3].map(|point| line(columns.map(|row| row[point])));
    std::array::from_fn(|point| lines[point % 4][point / 4])
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
