//! ReLU.

use crate::elementwise::map;

/// The larger of zero and every value; NaN stays NaN.
pub fn forward(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| if x <= 0.0 { 0.0 } else { x })
}

/// Gradient of the input, from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn backward(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(output, gradient, |output, gradient| if output <= 0.0 { 0.0 } else { gradient })
}
