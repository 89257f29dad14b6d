//! Batch normalisation followed by ReLU.
//!
//! No mask is stored: the gradient's passes compute the sign of each output again from the input, which they read
//! anyway.

use super::{Affine, Centred, totals};
use crate::{
    parallel,
    simd::{arch, load},
};
use pulp::{Simd, WithSimd};
use std::mem::MaybeUninit;

/// The positive part of each channel's map of `x`, `[batch, channels, positions]`. NaN is propagated.
///
/// # Panics
/// If there are fewer values than the shape requires or fewer maps than channels.
pub fn relu(outputs: &[Affine], x: Centred, [batch, channels, positions]: [usize; 3]) -> Vec<f32> {
    let one = |(): &mut (), image: usize, to: &mut [MaybeUninit<f32>]| {
        arch().dispatch(Outputs { outputs: &outputs[..channels], x, image, positions, to });
    };
    let len = parallel::values(&[channels, positions]).expect("an image that fits in memory");
    // SAFETY: an image has a whole number of planes, and every one is written.
    unsafe { parallel::build(batch, len, || (), one) }
}

struct Outputs<'a> {
    outputs: &'a [Affine],
    x: Centred<'a>,
    image: usize,
    positions: usize,
    to: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Outputs<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { outputs, x, image, positions, to } = self;
        for (channel, to) in to.chunks_exact_mut(positions).enumerate() {
            let (x, centre) = x.plane(image * outputs.len() + channel, outputs.len(), positions);
            for (to, x) in to.iter_mut().zip(x) {
                let output = outputs[channel].of(x - centre);
                to.write(if output <= 0.0 { 0.0 } else { output });
            }
        }
    }
}

/// A gradient of [`relu`]'s output.
#[derive(Clone, Copy)]
pub struct ReluGradient<'a> {
    /// Shape `[batch, channels, positions]`.
    pub values: &'a [f32],
    /// The maps of the forward pass.
    pub outputs: &'a [Affine],
    /// Their input.
    pub x: Centred<'a>,
}

impl ReluGradient<'_> {
    /// Sums the gradient before the ReLU, and that gradient × `x`, over each channel.
    ///
    /// # Panics
    /// If there are fewer values than the shape `[batch, channels, positions]` requires.
    pub fn sums(self, [batch, channels, positions]: [usize; 3]) -> Vec<[f64; 2]> {
        let one = |(): &mut (), image| arch().dispatch(Sums { gradient: self, image, channels, positions });
        totals(parallel::each(batch, || (), one), channels)
    }

    /// Applies each channel's map to the gradient before the ReLU and to `x`.
    ///
    /// # Panics
    /// As [`ReluGradient::sums`], or if there are fewer maps than channels.
    pub fn apply(self, lines: &[Affine], [batch, channels, positions]: [usize; 3]) -> Vec<f32> {
        let one = |(): &mut (), image: usize, to: &mut [MaybeUninit<f32>]| {
            arch().dispatch(Lines { gradient: self, lines: &lines[..channels], image, positions, to });
        };
        let len = parallel::values(&[channels, positions]).expect("an image that fits in memory");
        // SAFETY: an image has a whole number of planes, and every one is written.
        unsafe { parallel::build(batch, len, || (), one) }
    }
}

/// The gradient through the ReLU; unchanged where the output is NaN, as in Burn.
#[inline(always)]
fn passed(gradient: f32, output: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { gradient }
}

struct Sums<'a> {
    gradient: ReluGradient<'a>,
    image: usize,
    channels: usize,
    positions: usize,
}

impl WithSimd for Sums<'_> {
    type Output = Vec<[f32; 2]>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> Vec<[f32; 2]> {
        let Self { gradient: ReluGradient { values, outputs, x }, image, channels, positions } = self;
        let planes = (0..channels).map(|channel| {
            let plane = image * channels + channel;
            let values = &values[plane * positions..][..positions];
            let (x, centre) = x.plane(plane, channels, positions);
            plane_sums(simd, values, x, centre, outputs[channel])
        });
        planes.collect()
    }
}

#[inline(always)]
fn plane_sums<S: Simd>(simd: S, values: &[f32], x: &[f32], centre: f32, output: Affine) -> [f32; 2] {
    let (centres, zeros) = (simd.splat_f32s(centre), simd.splat_f32s(0.0));
    let (factors, constants) = (simd.splat_f32s(output.factors[0]), simd.splat_f32s(output.constant));
    let (mut first, mut second) = (zeros, zeros);
    let len = values.len().min(x.len());
    let whole = len - len % S::F32_LANES;
    for at in (0..whole).step_by(S::F32_LANES) {
        // SAFETY: a vector fits between here and `whole`, which is at most the length of both.
        let (gradient, x) = unsafe { (load::<S>(values.as_ptr().add(at)), load::<S>(x.as_ptr().add(at))) };
        let x = simd.sub_f32s(x, centres);
        // Rounded twice, as in the forward pass.
        let output = simd.add_f32s(simd.mul_f32s(x, factors), constants);
        let gradient = simd.select_f32s(simd.less_than_or_equal_f32s(output, zeros), zeros, gradient);
        first = simd.add_f32s(first, gradient);
        second = simd.mul_add_e_f32s(gradient, x, second);
    }
    let (mut first, mut second) = (simd.reduce_sum_f32s(first), simd.reduce_sum_f32s(second));
    for (gradient, x) in values[whole..len].iter().zip(&x[whole..len]) {
        let x = x - centre;
        let gradient = passed(*gradient, output.of(x));
        first += gradient;
        second += gradient * x;
    }
    [first, second]
}

struct Lines<'a> {
    gradient: ReluGradient<'a>,
    lines: &'a [Affine],
    image: usize,
    positions: usize,
    to: &'a mut [MaybeUninit<f32>],
}

impl WithSimd for Lines<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Self { gradient: ReluGradient { values, outputs, x }, lines, image, positions, to } = self;
        for (channel, to) in to.chunks_exact_mut(positions).enumerate() {
            let plane = image * lines.len() + channel;
            let values = &values[plane * positions..][..positions];
            let ((x, centre), output) = (x.plane(plane, lines.len(), positions), outputs[channel]);
            let Affine { factors, constant } = lines[channel];
            for ((to, gradient), x) in to.iter_mut().zip(values).zip(x) {
                let x = x - centre;
                to.write(passed(*gradient, output.of(x)) * factors[0] + x * factors[1] + constant);
            }
        }
    }
}
