//! Losses of one value x and its target y, and their derivatives by x, named `…_slope`.
//!
//! [`map`](crate::elementwise::map) and [`total`](crate::elementwise::total) compile them to loops over vectors. All have
//! room for two settings, so that they have one type.

use crate::exp::{exp, ln, ln_1p, sigmoid};

/// Squared error.
#[inline(always)]
pub fn squared(x: f32, y: f32, _: [f32; 2]) -> f32 {
    (x - y) * (x - y)
}

/// The derivative of [`squared`].
#[inline(always)]
pub fn squared_slope(x: f32, y: f32, _: [f32; 2]) -> f32 {
    2.0 * (x - y)
}

/// Absolute error.
#[inline(always)]
pub fn absolute(x: f32, y: f32, _: [f32; 2]) -> f32 {
    (x - y).abs()
}

/// The derivative of [`absolute`]; 0 without an error, and for NaN, as in Burn.
#[inline(always)]
pub fn absolute_slope(x: f32, y: f32, _: [f32; 2]) -> f32 {
    if x > y {
        1.0
    } else if x < y {
        -1.0
    } else {
        0.0
    }
}

/// Half the square of errors up to δ, and beyond linear with slope δ (Huber 1964).
#[inline(always)]
pub fn huber(x: f32, y: f32, settings: [f32; 2]) -> f32 {
    let limited = huber_slope(x, y, settings);
    limited * (x - y - 0.5 * limited)
}

/// The derivative of [`huber`].
#[inline(always)]
pub fn huber_slope(x: f32, y: f32, [delta, _]: [f32; 2]) -> f32 {
    let error = x - y;
    // NaN stays NaN.
    let below = if error > delta { delta } else { error };
    if below < -delta { -delta } else { below }
}

/// [`huber`] divided by its setting.
#[inline(always)]
pub fn smooth_absolute(x: f32, y: f32, settings: [f32; 2]) -> f32 {
    let limited = huber_slope(x, y, settings);
    limited / settings[0] * (x - y - 0.5 * limited)
}

/// The derivative of [`smooth_absolute`].
#[inline(always)]
pub fn smooth_absolute_slope(x: f32, y: f32, settings: [f32; 2]) -> f32 {
    huber_slope(x, y, settings) / settings[0]
}

/// Cross-entropy −t ln σ(x) − (1 − t) ln(1 − σ(x)) of a logit, with the target t = factor × y + offset.
#[inline(always)]
pub fn logit(x: f32, y: f32, [factor, offset]: [f32; 2]) -> f32 {
    // ln σ(x) = −max(−x, 0) − ln(1 + e^−|x|)
    (1.0 - (y * factor + offset)) * x + (-x).max(0.0) + ln_1p(exp(-x.abs()))
}

/// The derivative of [`logit`].
#[inline(always)]
pub fn logit_slope(x: f32, y: f32, [factor, offset]: [f32; 2]) -> f32 {
    let target = y * factor + offset;
    // σ(x) − target, but precise where that is small.
    (1.0 - target) * sigmoid(x) - target * sigmoid(-x)
}

/// The least logarithm of a probability in a cross-entropy, as in PyTorch and Burn.
const LEAST: f32 = -100.0;

/// Cross-entropy −t ln x − (1 − t) ln(1 − x) of a probability, with the target t = factor × y + offset.
///
/// Logarithms are at least −100.
#[inline(always)]
pub fn probability(x: f32, y: f32, [factor, offset]: [f32; 2]) -> f32 {
    let target = y * factor + offset;
    let limited = |ln: f32| if ln < LEAST { LEAST } else { ln };
    let ln_rest = if x.abs() < 0.25 { ln_1p(-x) } else { ln(1.0 - x) };
    (target - 1.0) * limited(ln_rest) - target * limited(ln(x))
}

/// The derivative of [`probability`].
#[inline(always)]
pub fn probability_slope(x: f32, y: f32, [factor, offset]: [f32; 2]) -> f32 {
    let target = y * factor + offset;
    // A limited logarithm is a constant; that of a subnormal probability counts as one.
    let over = |part: f32, of: f32| if of < f32::MIN_POSITIVE { 0.0 } else { part / of };
    over(1.0 - target, 1.0 - x) - over(target, x)
}
