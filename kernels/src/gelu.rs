//! GELU with the error function (Hendrycks and Gimpel 2016, arXiv 1606.08415).

use crate::{elementwise::map, exp::exp};

/// x Φ(x) for every value, with an absolute error below 3e-7 for |x| up to 1.
pub fn forward(x: &[f32]) -> Vec<f32> {
    map(x, x, |x, _| x * normal(x).0)
}

/// Gradient of `x` from that of the output.
///
/// # Panics
/// If the lengths differ.
pub fn backward(x: &[f32], gradient: &[f32]) -> Vec<f32> {
    map(x, gradient, |x, gradient| {
        let (distribution, density) = normal(x);
        gradient * (distribution + x * density)
    })
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

    /// Reference values from torch 2.15's `gelu` and its gradient in float64.
    #[test]
    fn values_and_gradients_equal_pytorchs() {
        let x = [-6.0, -2.5, -1.0, -0.1, 0.0, 0.3, 1.0, 2.0, 5.0];
        let values = [
            -5.919526e-09,
            -0.01552416,
            -0.1586553,
            -0.04601722,
            0.0,
            0.1853734,
            0.8413447,
            1.9545,
            4.999999,
        ];
        let gradients = [
            -3.546871e-08,
            -0.03761109,
            -0.08331547,
            0.4204769,
            0.5,
            0.7323278,
            1.083315,
            1.085232,
            1.000007,
        ];
        let close = |ours: Vec<f32>, theirs: [f32; 9]| {
            for (ours, theirs) in ours.iter().zip(theirs) {
                assert!((ours - theirs).abs() < 5e-7, "{ours} for {theirs}");
            }
        };
        close(forward(&x), values);
        close(backward(&x, &[1.0; 9]), gradients);
        assert_eq!(forward(&[-100.0, 100.0]), [0.0, 100.0]);
    }
}
