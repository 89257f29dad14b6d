//! Logistic function and hyperbolic tangent, whose gradients depend on the output.

use crate::{elementwise::map, exp};

/// 1 / (1 + e^−x) for every value.
pub fn sigmoid(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| exp::sigmoid(x))
}

/// Gradient of the input of [`sigmoid`], from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_backward(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(output, gradient, |output, gradient| gradient * output * (1.0 - output))
}

/// Hyperbolic tangent of every value.
pub fn tanh(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| exp::tanh(x))
}

/// Gradient of the input of [`tanh`], from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn tanh_backward(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(output, gradient, |output, gradient| gradient * (1.0 - output * output))
}
