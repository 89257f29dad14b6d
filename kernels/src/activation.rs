//! Activation functions of one value, and their gradients.
//!
//! Functions named `…_gradient` return the gradient of the input, from that of the output and the input, unless they say
//! that they read the output. [`map`] compiles them to loops over vectors.

use crate::{
    elementwise::{map, update},
    exp::{exp, exp_m1, ln_1p},
};

pub use crate::exp::{sigmoid, tanh};

/// ReLU, the larger of zero and x; NaN stays NaN.
#[inline(always)]
pub fn relu(x: f32) -> f32 {
    relu_gradient(x, x)
}

/// Reads the output. Unchanged where that is NaN, as in Burn.
#[inline(always)]
pub fn relu_gradient(output: f32, gradient: f32) -> f32 {
    if output <= 0.0 { 0.0 } else { gradient }
}

/// ReLU up to 6.
#[inline(always)]
pub fn relu6(x: f32) -> f32 {
    x.clamp(0.0, 6.0)
}

/// Zero outside of 0 to 6; unchanged for NaN.
#[inline(always)]
pub fn relu6_gradient(x: f32, gradient: f32) -> f32 {
    if relu6(x) == x || x.is_nan() { gradient } else { 0.0 }
}

/// Reads the output.
#[inline(always)]
pub fn sigmoid_gradient(output: f32, gradient: f32) -> f32 {
    gradient * output * (1.0 - output)
}

/// Reads the output.
#[inline(always)]
pub fn tanh_gradient(output: f32, gradient: f32) -> f32 {
    gradient * (1.0 - output * output)
}

/// α x + β between 0 and 1.
#[inline(always)]
pub fn hard_sigmoid(x: f32, [alpha, beta]: [f32; 2]) -> f32 {
    (alpha * x + beta).clamp(0.0, 1.0)
}

/// Zero where [`hard_sigmoid`] is limited.
#[inline(always)]
pub fn hard_sigmoid_gradient(x: f32, gradient: f32, [alpha, beta]: [f32; 2]) -> f32 {
    let value = alpha * x + beta;
    if value.clamp(0.0, 1.0) == value || value.is_nan() { alpha * gradient } else { 0.0 }
}

const HARD_SWISH: [f32; 2] = [1.0 / 6.0, 0.5];

/// Hard swish, x times [`hard_sigmoid`] with α = 1/6 and β = 1/2 (Howard et al. 2019, arXiv 1905.02244).
#[inline(always)]
pub fn hard_swish(x: f32) -> f32 {
    x * hard_sigmoid(x, HARD_SWISH)
}

/// The gradient of [`hard_swish`].
#[inline(always)]
pub fn hard_swish_gradient(x: f32, gradient: f32) -> f32 {
    gradient * hard_sigmoid(x, HARD_SWISH) + hard_sigmoid_gradient(x, gradient * x, HARD_SWISH)
}

/// ELU, x or α (e^x − 1) (Clevert et al. 2015, arXiv 1511.07289).
#[inline(always)]
pub fn elu(x: f32, [alpha, _]: [f32; 2]) -> f32 {
    if x <= 0.0 { alpha * exp_m1(x) } else { x }
}

/// The gradient of [`elu`].
#[inline(always)]
pub fn elu_gradient(x: f32, gradient: f32, [alpha, _]: [f32; 2]) -> f32 {
    if x <= 0.0 { gradient * alpha * exp(x) } else { gradient }
}

/// Factors α and γ of SELU.
const SELU: [f32; 2] = [1.673_263_2, 1.050_701];

/// SELU, an ELU times a factor (Klambauer et al. 2017, arXiv 1706.02515).
#[inline(always)]
pub fn selu(x: f32) -> f32 {
    SELU[1] * elu(x, SELU)
}

/// The gradient of [`selu`]. At 0 it is that of positive values, as in Burn.
#[inline(always)]
pub fn selu_gradient(x: f32, gradient: f32) -> f32 {
    let gradient = SELU[1] * gradient;
    if x == 0.0 { gradient } else { elu_gradient(x, gradient, SELU) }
}

/// Softplus, ln(1 + e^βx) / β; x where βx is above the threshold.
#[inline(always)]
pub fn softplus(x: f32, [beta, threshold]: [f32; 2]) -> f32 {
    let scaled = beta * x;
    if scaled > threshold { x } else { (scaled.max(0.0) + ln_1p(exp(-scaled.abs()))) / beta }
}

/// The gradient of [`softplus`].
#[inline(always)]
pub fn softplus_gradient(x: f32, gradient: f32, [beta, threshold]: [f32; 2]) -> f32 {
    if beta * x > threshold { gradient } else { gradient * sigmoid(beta * x) }
}

/// Mish, x tanh(ln(1 + e^x)) (Misra 2019, arXiv 1908.08681).
#[inline(always)]
pub fn mish(x: f32) -> f32 {
    x * tanh_softplus(x).0
}

/// The gradient of [`mish`].
#[inline(always)]
pub fn mish_gradient(x: f32, gradient: f32) -> f32 {
    let (tanh, slope) = tanh_softplus(x);
    gradient * (tanh + limited(x) * slope)
}

/// At most 20, from where on tanh(ln(1 + e^x)) is 1 in f32. NaN stays NaN.
#[inline(always)]
fn limited(x: f32) -> f32 {
    if x > 20.0 { 20.0 } else { x }
}

/// tanh(ln(1 + e^x)), and its derivative.
#[inline(always)]
fn tanh_softplus(x: f32) -> (f32, f32) {
    let power = exp(limited(x));
    // (1 + e^x)² − 1
    let square = power * (power + 2.0);
    let rest = 2.0 / (square + 2.0);
    let tanh = square / (square + 2.0);
    (tanh, rest * (1.0 + tanh) * power / (1.0 + power))
}

/// SiLU or swish, x σ(x) (Elfwing et al. 2017, arXiv 1702.03118).
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    x * logistic(x)
}

/// The gradient of [`silu`].
#[inline(always)]
pub fn silu_gradient(x: f32, gradient: f32) -> f32 {
    let sigmoid = logistic(x);
    gradient * (sigmoid + x * sigmoid * (1.0 - sigmoid))
}

/// `silu(x) × factor` of values at the same index.
///
/// # Panics
/// If the lengths differ.
pub fn silu_product(x: &[f32], factor: &[f32]) -> Vec<f32> {
    map(x, factor, |x, factor| silu(x) * factor)
}

/// Gradients of both inputs of [`silu_product`], from the inputs and the gradient of the output.
///
/// # Panics
/// If the lengths differ.
pub fn silu_product_gradients(x: &[f32], factor: &[f32], gradient: &[f32]) -> [Vec<f32>; 2] {
    let mut for_factor = factor.to_vec();
    let for_x = update((x, gradient), &mut for_factor, &mut vec![(); x.len()], |x, gradient, factor, ()| {
        let for_x = silu_gradient(x, gradient * *factor);
        *factor = gradient * silu(x);
        for_x
    });
    [for_x, for_factor]
}

#[inline(always)]
fn logistic(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// GELU with the error function, x Φ(x) (Hendrycks and Gimpel 2016, arXiv 1606.08415).
///
/// The absolute error is below 3e-7 for |x| up to 1.
#[inline(always)]
pub fn gelu(x: f32) -> f32 {
    x * normal(x).0
}

/// The gradient of [`gelu`].
#[inline(always)]
pub fn gelu_gradient(x: f32, gradient: f32) -> f32 {
    let (distribution, density) = normal(x);
    gradient * (distribution + x * density)
}

/// GELU with tanh in place of the error function, x σ(2 u) (Hendrycks and Gimpel 2016, arXiv 1606.08415).
#[inline(always)]
pub fn gelu_approximate(x: f32) -> f32 {
    x * logistic(approximate_exponent(x).0)
}

/// The gradient of [`gelu_approximate`].
#[inline(always)]
pub fn gelu_approximate_gradient(x: f32, gradient: f32) -> f32 {
    let (exponent, slope) = approximate_exponent(x);
    // 1 − σ is e^−2u σ, which keeps its digits.
    let power = exp(-exponent);
    let sigmoid = 1.0 / (1.0 + power);
    gradient * (sigmoid + x.clamp(-LARGE, LARGE) * slope * sigmoid * (power * sigmoid))
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

    type Function = (fn(f32) -> f32, fn(f32, f32) -> f32);

    /// Compares a function and its gradient with rows of x, value and gradient.
    fn equals_reference((function, gradient): Function, reference: &[[f32; 3]]) {
        for &[x, value, slope] in reference {
            let ours = [function(x), gradient(x, 1.0)];
            assert!((ours[0] - value).abs() < 5e-7 && (ours[1] - slope).abs() < 5e-7, "{ours:?} at {x}");
        }
        let large = [-100.0, 100.0].map(function);
        assert!(large[0].abs() < 1e-30 && large[1] == 100.0, "{large:?}");
        let slopes = [-1e38, -100.0, 100.0, 1e38].map(|x| gradient(x, 1.0));
        assert!(slopes[1].abs() < 1e-30 && slopes[2] == 1.0 && slopes[3] == 1.0, "{slopes:?}");
        assert!(slopes[0].abs() < 1e-30, "{slopes:?}");
        assert!(function(f32::NAN).is_nan());
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
        assert_eq!([-100.0, 100.0].map(gelu), [0.0, 100.0]);
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
