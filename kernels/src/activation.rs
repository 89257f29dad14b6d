//! Activation functions and their gradients.

use crate::{
    elementwise::{map, update},
    exp::{self, exp},
};

/// ReLU: the larger of zero and every value; NaN stays NaN.
pub fn relu(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| passed(x, x))
}

/// Gradient of the input of [`relu`], from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn relu_gradient(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(gradient, output, passed)
}

/// The gradient through a ReLU with this output; unchanged where the output is NaN, as in Burn.
#[inline(always)]
pub(crate) fn passed(gradient: f32, output: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { gradient }
}

/// Logistic function, 1 / (1 + e^−x), of every value.
pub fn sigmoid(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| exp::sigmoid(x))
}

/// Gradient of the input of [`sigmoid`], from the output and its gradient.
///
/// # Panics
/// If the lengths differ.
pub fn sigmoid_gradient(output: &[f32], gradient: &[f32]) -> Vec<f32> {
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
pub fn tanh_gradient(output: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(output, gradient, |output, gradient| gradient * (1.0 - output * output))
}

/// SiLU, x σ(x), of every value (Elfwing et al. 2017, arXiv 1702.03118).
pub fn silu(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| x * logistic(x))
}

/// Gradient of the input of [`silu`], from the input and the gradient of the output.
///
/// # Panics
/// If the lengths differ.
pub fn silu_gradient(x: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(x, gradient, |x, gradient| {
        let sigmoid = logistic(x);
        gradient * (sigmoid + x * sigmoid * (1.0 - sigmoid))
    })
}

/// `silu(x) × factor` of values at the same index.
///
/// # Panics
/// If the lengths differ.
pub fn silu_product(x: &[f32], factor: &[f32]) -> Vec<f32> {
    map(x, factor, |x, factor| x * logistic(x) * factor)
}

/// Gradients of both inputs of [`silu_product`], from the inputs and the gradient of the output.
///
/// # Panics
/// If the lengths differ.
pub fn silu_product_gradients(x: &[f32], factor: &[f32], gradient: &[f32]) -> [Vec<f32>; 2] {
    let mut for_factor = factor.to_vec();
    let for_x = update((x, gradient), &mut for_factor, &mut vec![(); x.len()], |x, gradient, factor, ()| {
        let sigmoid = logistic(x);
        let for_x = gradient * *factor * (sigmoid + x * sigmoid * (1.0 - sigmoid));
        *factor = gradient * (x * sigmoid);
        for_x
    });
    [for_x, for_factor]
}

#[inline(always)]
fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// GELU with the error function, x Φ(x), of every value (Hendrycks and Gimpel 2016, arXiv 1606.08415).
///
/// The absolute error is below 3e-7 for |x| up to 1.
pub fn gelu(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| x * normal(x).0)
}

/// Gradient of the input of [`gelu`], from the input and the gradient of the output.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_gradient(x: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(x, gradient, |x, gradient| {
        let (distribution, density) = normal(x);
        gradient * (distribution + x * density)
    })
}

/// GELU with tanh in place of the error function, x σ(2 u), of every value (Hendrycks and Gimpel 2016, arXiv 1606.08415).
pub fn gelu_approximate(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| x * logistic(approximate_exponent(x).0))
}

/// Gradient of the input of [`gelu_approximate`], from the input and the gradient of the output.
///
/// # Panics
/// If the lengths differ.
pub fn gelu_approximate_gradient(x: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(x, gradient, |x, gradient| {
        let (exponent, slope) = approximate_exponent(x);
        // 1 − σ is e^−2u σ, which keeps its digits.
        let power = exp(-exponent);
        let sigmoid = 1.0 / (1.0 + power);
        gradient * (sigmoid + x.clamp(-LARGE, LARGE) * slope * sigmoid * (power * sigmoid))
    })
}

/// Magnitude from which [`gelu_approximate`] is 0 or x.
const LARGE: f32 = 20.0;

/// 2 u, where u = √(2/π) (x + 0.044715 x³), and its derivative. Clamped, so that neither is infinite.
#[inline(always)]
fn approximate_exponent(x: f32) -> (f32, f32) {
    const FACTOR: f32 = 1.595_769;
    let x = x.clamp(-LARGE, LARGE);
    let square = 0.044_715 * x * x;
    (FACTOR * x * (1.0 + square), FACTOR * (1.0 + 3.0 * square))
}

/// Distribution function and density of the normal distribution.
#[inline(always)]
fn normal(x: f32) -> (f32, f32) {
    const SQRT_2_PI: f32 = 2.506_628_3;
    let power = exp(-0.5 * x * x);
    // Approximation 7.1.26 of erfc (Abramowitz and Stegun 1964).
    let t = 1.0 / (1.0 + 0.327_591_1 * std::f32::consts::FRAC_1_SQRT_2 * x.abs());
    let mut sum = 1.061_405_4;
    for coefficient in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
        sum = sum * t + coefficient;
    }
    let tail = 0.5 * sum * t * power;
    (if x < 0.0 { tail } else { 1.0 - tail }, power / SQRT_2_PI)
}

#[cfg(test)]
mod tests {
    use super::*;

    type Function = (fn(&[f32]) -> Vec<f32>, fn(&[f32], &[f32]) -> Vec<f32>);

    /// Compares a function and its gradient with rows of x, value and gradient.
    fn equals_reference((function, gradient): Function, reference: &[[f32; 3]]) {
        for &[x, value, slope] in reference {
            let ours = [function(&[x])[0], gradient(&[x], &[1.0])[0]];
            assert!((ours[0] - value).abs() < 5e-7 && (ours[1] - slope).abs() < 5e-7, "{ours:?} at {x}");
        }
        let large = function(&[-100.0, 100.0]);
        assert!(large[0].abs() < 1e-30 && large[1] == 100.0, "{large:?}");
        let slopes = gradient(&[-1e38, -100.0, 100.0, 1e38], &[1.0; 4]);
        assert!(slopes[1].abs() < 1e-30 && slopes[2] == 1.0 && slopes[3] == 1.0, "{slopes:?}");
        assert!(slopes[0].abs() < 1e-30, "{slopes:?}");
        assert!(function(&[f32::NAN])[0].is_nan());
    }

    /// Reference values from torch 2.15's `gelu` in float64.
    #[test]
    fn gelu_and_its_gradient_equal_pytorchs() {
        let reference = [
            [-6.0, -5.919526e-09, -3.546871e-08],
            [-2.5, -0.01552416, -0.03761109],
            [-1.0, -0.1586553, -0.08331547],
            [-0.1, -0.04601722, 0.4204769],
            [0.0, 0.0, 0.5],
            [0.3, 0.1853734, 0.7323278],
            [1.0, 0.8413447, 1.083315],
            [2.0, 1.9545, 1.085232],
            [5.0, 4.999999, 1.000007],
        ];
        equals_reference((gelu, gelu_gradient), &reference);
        assert_eq!(gelu(&[-100.0, 100.0]), [0.0, 100.0]);
    }

    /// Reference values from torch 2.15's `gelu` with `approximate="tanh"` in float64.
    #[test]
    fn approximate_gelu_and_its_gradient_equal_pytorchs() {
        let reference = [
            [-6.0, -8.439649e-11, -7.709976e-10],
            [-2.5, -0.01508427, -0.03795158],
            [-1.0, -0.158808, -0.08296408],
            [-0.1, -0.04601725, 0.4204782],
            [0.0, 0.0, 0.5],
            [0.3, 0.1853709, 0.7322955],
            [1.0, 0.841192, 1.082964],
            [2.0, 1.954598, 1.086099],
            [5.0, 5.0, 1.000002],
        ];
        equals_reference((gelu_approximate, gelu_approximate_gradient), &reference);
    }
}
