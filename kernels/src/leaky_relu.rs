//! Leaky ReLU (Maas et al. 2013) and PReLU (He et al. 2015, arXiv 1502.01852).

use crate::{
    conv::channel_sums,
    elementwise::map,
    parallel::{self, Room},
    simd::multiversion,
};

/// Values per part of the work.
const PART: usize = 1 << 13;

/// Multiplies the `values` at which `x` is negative by a slope.
///
/// The planes of `x`, of `plane` values, have the slopes in turn. With `x` as the values, this is the function; with the
/// gradient of the output, the result is that of `x`.
///
/// # Panics
/// If the lengths differ, or are not a multiple of those of all planes.
pub fn scale(x: &[f32], values: &[f32], slopes: &[f32], plane: usize) -> Vec<f32> {
    let row = slopes.len() * plane;
    assert_eq!(x.len(), values.len(), "one length for both");
    assert!(x.is_empty() || x.len().checked_rem(row) == Some(0), "whole planes");
    let rows = [x.len() / row.max(1), (PART / row.max(1)).max(1)];
    let write = |(): &mut (), range: std::ops::Range<usize>, to: Room| {
        let [x, values] = [x, values].map(|of| &of[range.start * row..range.end * row]);
        scale_rows(x, values, slopes, plane, to);
    };
    // SAFETY: `scale_rows` writes all values.
    unsafe { parallel::build(rows, row, || (), write) }
}

/// Gradients of the slopes, from that of the output.
///
/// # Panics
/// If the lengths differ.
pub fn slope_gradients(x: &[f32], gradient: &[f32], slopes: usize, plane: usize) -> Vec<f32> {
    channel_sums(&map(x, gradient, |x, gradient| if x < 0.0 { x * gradient } else { 0.0 }), slopes, plane)
}

multiversion!(
    fn scale_rows(x: &[f32], values: &[f32], slopes: &[f32], plane: usize, to: Room<'_>) {
        for number in 0..x.len() / plane.max(1) {
            let slope = slopes[number % slopes.len()];
            let planes = number * plane..(number + 1) * plane;
            let (x, values, to) = (&x[planes.clone()], &values[planes.clone()], &mut to[planes]);
            for ((x, value), to) in x.iter().zip(values).zip(to) {
                to.write(if *x < 0.0 { *value * slope } else { *value });
            }
        }
    }
);
