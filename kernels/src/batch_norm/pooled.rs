//! Batch normalisation followed by ReLU and max-pooling, of which only the pooled values are stored.

use super::{Affine, Centred, totals};
use crate::{
    parallel,
    pool::{NONE, Windows},
    simd::{multiversion, sum_pairs},
};
use std::{mem::MaybeUninit, ops::Range};

/// A gradient of the output of [`pool::forward_mapped`](crate::pool::forward_mapped).
#[derive(Clone, Copy)]
pub struct PooledGradient<'a> {
    /// A gradient for each window.
    pub values: &'a [f32],
    /// Index of each window's largest value.
    pub taken: &'a [u8],
    /// The input there, relative to its centre.
    pub inputs: &'a [f32],
    /// The windows.
    pub windows: &'a Windows,
    /// The input.
    pub x: Centred<'a>,
}

impl PooledGradient<'_> {
    /// Sums the gradient before the pooling, and that gradient × `x`, over each channel.
    ///
    /// # Panics
    /// If there are fewer values than the windows require.
    pub fn sums(self) -> Vec<[f64; 2]> {
        let [batch, channels, ..] = self.windows.output();
        totals(parallel::each(batch, || (), |(), image| image_sums(self, image)), channels)
    }

    /// Applies each channel's map to the gradient before the pooling and to `x`.
    ///
    /// # Panics
    /// As [`PooledGradient::sums`], or if there are fewer maps than channels.
    pub fn apply(self, lines: &[Affine]) -> Vec<f32> {
        let [batch, channels, height, width] = self.windows.input();
        let one = |(): &mut (), image: Range<usize>, to: &mut [MaybeUninit<f32>]| {
            apply_to_image(self, &lines[..channels], image.start, to)
        };
        // SAFETY: every value of every row is written.
        unsafe { parallel::build([batch, 1], channels * height * width, || (), one) }
    }
}

multiversion!(
    fn image_sums(gradient: PooledGradient<'_>, image: usize) -> Vec<[f32; 2]> {
        let PooledGradient { values, taken, inputs, windows, .. } = gradient;
        let [_, channels, rows, columns] = windows.output();
        let len = rows * columns;
        let mut sums = Vec::with_capacity(channels);
        // A closure of an iterator could be compiled as a function without the vector instructions.
        for plane in image * channels..(image + 1) * channels {
            let (values, inputs) = (&values[plane * len..][..len], &inputs[plane * len..][..len]);
            let taken = &taken[plane * len..][..len];
            sums.push(sum_pairs(values, inputs, taken, |gradient, input, taken| {
                let gradient = if taken == NONE { 0.0 } else { gradient };
                [gradient, gradient * input]
            }));
        }
        sums
    }
);

multiversion!(
    fn apply_to_image(
        gradient: PooledGradient<'_>,
        lines: &[Affine],
        image: usize,
        to: &mut [MaybeUninit<f32>],
    ) {
        match gradient.windows.kernel()[1] {
            1 => apply_to::<1>(gradient, lines, image, to),
            2 => apply_to::<2>(gradient, lines, image, to),
            3 => apply_to::<3>(gradient, lines, image, to),
            _ => apply_to::<4>(gradient, lines, image, to),
        }
    }
);

/// [`apply_to_image`] for windows of `K` columns.
#[inline(always)]
fn apply_to<const K: usize>(
    gradient: PooledGradient,
    lines: &[Affine],
    image: usize,
    to: &mut [MaybeUninit<f32>],
) {
    let PooledGradient { values, taken, windows, x, .. } = gradient;
    let ([_, channels, height, width], [.., rows, columns]) = (windows.input(), windows.output());
    let kernel_rows = windows.kernel()[0];
    for (channel, to) in to.chunks_exact_mut(height * width).enumerate() {
        let plane = image * channels + channel;
        let (x, centre) = x.plane(plane, channels, height * width);
        let Affine { factors, constant } = lines[channel];
        // In the order of `apply`'s sum.
        let line = |gradient: f32, x: f32| gradient * factors[0] + (x - centre) * factors[1] + constant;
        for (row, (to, x)) in to.chunks_exact_mut(width).zip(x.chunks_exact(width)).enumerate() {
            if row >= rows * kernel_rows {
                fill(to, x, |x| line(0.0, x));
                continue;
            }
            let at = (plane * rows + row / kernel_rows) * columns;
            let (values, taken) = (&values[at..at + columns], &taken[at..at + columns]);
            let first = (row % kernel_rows * K) as u8;
            let ((to, to_rest), (x, x_rest)) = (to.as_chunks_mut::<K>(), x.as_chunks::<K>());
            for (((to, x), &gradient), &taken) in to.iter_mut().zip(x).zip(values).zip(taken) {
                for at in 0..K {
                    let gradient = if taken == first + at as u8 { gradient } else { 0.0 };
                    to[at].write(line(gradient, x[at]));
                }
            }
            fill(to_rest, x_rest, |x| line(0.0, x));
        }
    }
}

/// Writes the map of `x`, which no window takes.
#[inline(always)]
fn fill(to: &mut [MaybeUninit<f32>], x: &[f32], map: impl Fn(f32) -> f32) {
    for (to, x) in to.iter_mut().zip(x) {
        to.write(map(*x));
    }
}
