//! SiLU, x σ(x) (Elfwing et al. 2017, arXiv 1702.03118).

use crate::{elementwise::map, exp::exp};

/// x σ(x) for every value.
pub fn forward(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| x * sigmoid(x))
}

/// Gradient of `x` from that of the output.
///
/// # Panics
/// If the lengths differ.
pub fn backward(x: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(x, gradient, |x, gradient| {
        let sigmoid = sigmoid(x);
        gradient * (sigmoid + x * sigmoid * (1.0 - sigmoid))
    })
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}
