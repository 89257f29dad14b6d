//! ReLU.

use crate::elementwise::map;

/// The larger of zero and every value; NaN stays NaN.
pub fn forward(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| passed(x, x))
}

/// Gradient of the input, from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn backward(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(gradient, output, passed)
}

/// The gradient through a ReLU with this output; unchanged where the output is NaN, as in Burn.
#[inline(always)]
pub(crate) fn passed(gradient: f32, output: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { gradient }
}
