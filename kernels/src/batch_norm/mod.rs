//! Passes of batch normalisation: sums over the channels of a batch and an affine map per channel, also followed by
//! ReLU, or by ReLU and max-pooling.
//!
//! Batches are `[batch, channels, positions]`. No mask of a ReLU is stored: the gradient's passes compute the sign of each
//! output again from the input, which they read anyway.

mod pooled;
mod rows;
#[cfg(test)]
mod tests;

pub use crate::affine::{Affine, Centred};
pub use pooled::PooledGradient;

use crate::{
    activation::{self, relu_gradient},
    parallel::{self, Room},
    simd::{load, multiversion},
};
use pulp::Simd;
use std::ops::Range;

/// Sums `a` and `a` × `b` over each channel.
///
/// With `outputs`, `a` is a gradient, without centres, through the ReLU after these maps of `b`. Planes, or a few values of
/// several images, are summed in f32 and their sums in f64, in image order.
///
/// # Panics
/// If there are fewer values than the shape `[batch, channels, positions]` requires.
pub fn sums(
    a: Centred,
    b: Centred,
    outputs: Option<&[Affine]>,
    [batch, channels, positions]: [usize; 3],
) -> Vec<[f64; 2]> {
    if rows::are_faster(positions) {
        return rows::sums(a, b, outputs, [batch, channels, positions]);
    }
    let one = |(): &mut (), image| image_sums(a, b, outputs, image, channels, positions);
    totals(parallel::each(batch, || (), one), channels)
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

multiversion!(
    fn image_sums<S: Simd>(
        simd: S,
        a: Centred<'_>,
        b: Centred<'_>,
        outputs: Option<&[Affine]>,
        image: usize,
        channels: usize,
        positions: usize,
    ) -> Vec<[f32; 2]> {
        let mut sums = Vec::with_capacity(channels);
        // A closure of an iterator could be compiled as a function without the vector instructions.
        for channel in 0..channels {
            let plane = image * channels + channel;
            let (a, b) = (a.plane(plane, channels, positions), b.plane(plane, channels, positions));
            sums.push(match outputs {
                None => plane_sums::<S, false>(simd, a, b, Affine { factors: [0.0; 2], constant: 0.0 }),
                Some(outputs) => plane_sums::<S, true>(simd, a, b, outputs[channel]),
            });
        }
        sums
    }
);

/// Sums of two planes with centres; with `RELU`, the first is a gradient through a ReLU after `output`, without a centre.
#[inline(always)]
fn plane_sums<S: Simd, const RELU: bool>(
    simd: S,
    (a, centre_a): (&[f32], f32),
    (b, centre_b): (&[f32], f32),
    output: Affine,
) -> [f32; 2] {
    let (wide_a, wide_b, zeros) =
        (simd.splat_f32s(centre_a), simd.splat_f32s(centre_b), simd.splat_f32s(0.0));
    let (factors, constants) = (simd.splat_f32s(output.factors[0]), simd.splat_f32s(output.constant));
    let (mut first, mut second) = (zeros, zeros);
    let len = a.len().min(b.len());
    let whole = len - len % S::F32_LANES;
    let mut at = 0;
    while at < whole {
        // SAFETY: a vector fits between here and `whole`, which is at most the length of both.
        let (a, b) = unsafe { (load::<S>(a.as_ptr().add(at)), load::<S>(b.as_ptr().add(at))) };
        let b = simd.sub_f32s(b, wide_b);
        let a = if RELU {
            // Rounded twice, as in the forward pass.
            let output = simd.add_f32s(simd.mul_f32s(b, factors), constants);
            simd.select_f32s(simd.less_than_or_equal_f32s(output, zeros), zeros, a)
        } else {
            simd.sub_f32s(a, wide_a)
        };
        first = simd.add_f32s(first, a);
        second = simd.mul_add_e_f32s(a, b, second);
        at += S::F32_LANES;
    }
    let (mut first, mut second) = (simd.reduce_sum_f32s(first), simd.reduce_sum_f32s(second));
    for at in whole..len {
        let b = b[at] - centre_b;
        let a = if RELU { relu_gradient(output.of(b), a[at]) } else { a[at] - centre_a };
        first += a;
        second += a * b;
    }
    [first, second]
}

/// A ReLU in the pass of [`apply`].
#[derive(Clone, Copy)]
pub enum Relu<'a> {
    /// None.
    None,
    /// After the maps of `a`; there is no `b`. NaN is propagated.
    After,
    /// `a` is a gradient, without centres, through the ReLU after these maps of `b`.
    Before(&'a [Affine]),
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
    relu: Relu,
    [batch, channels, positions]: [usize; 3],
) -> Vec<f32> {
    let one = |(): &mut (), image: Range<usize>, to: Room| {
        apply_to_image(&lines[..channels], a, b, relu, image.start, positions, to)
    };
    let len = parallel::values(&[channels, positions]).expect("an image that fits in memory");
    if rows::are_faster(positions) {
        return rows::apply(lines, a, b, relu, [batch, channels, positions]);
    }
    // SAFETY: an image has a whole number of planes, and every one is written.
    unsafe { parallel::build([batch, 1], len, || (), one) }
}

multiversion!(
    fn apply_to_image(
        lines: &[Affine],
        a: Centred<'_>,
        b: Option<Centred<'_>>,
        relu: Relu<'_>,
        image: usize,
        positions: usize,
        to: Room<'_>,
    ) {
        for (channel, to) in to.chunks_exact_mut(positions).enumerate() {
            let (line, plane) = (lines[channel], image * lines.len() + channel);
            let Affine { factors, constant } = line;
            let (a, centre_a) = a.plane(plane, lines.len(), positions);
            match (b.map(|b| b.plane(plane, lines.len(), positions)), relu) {
                (None, Relu::After) => {
                    for (to, a) in to.iter_mut().zip(a) {
                        let output = line.of(a - centre_a);
                        to.write(activation::relu(output));
                    }
                }
                (None, _) => {
                    for (to, a) in to.iter_mut().zip(a) {
                        to.write(line.of(a - centre_a));
                    }
                }
                (Some((b, centre_b)), Relu::Before(outputs)) => {
                    let output = outputs[channel];
                    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                        let b = b - centre_b;
                        to.write(relu_gradient(output.of(b), *a) * factors[0] + b * factors[1] + constant);
                    }
                }
                (Some((b, centre_b)), _) => {
                    for ((to, a), b) in to.iter_mut().zip(a).zip(b) {
                        to.write((a - centre_a) * factors[0] + (b - centre_b) * factors[1] + constant);
                    }
                }
            }
        }
    }
);
