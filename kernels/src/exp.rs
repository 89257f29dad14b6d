//! The exponential function as plain arithmetic, which the compiler vectorises.

/// e^x for x up to 88, with a relative error below 3e-7; 0 below −87.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (power, rest) = split(x);
    if x < -87.0 { 0.0 } else { (rest + 1.0) * power }
}

/// 1 / (1 + e^−x), with a relative error below 4e-7; 0 below −87.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let power = exp(x);
    power / (power + 1.0)
}

/// Hyperbolic tangent, with a relative error below 4e-7.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // e^2|x| − 1, which is accurate near 0.
    let (power, rest) = split(2.0 * x.abs());
    let less_one = rest * power + (power - 1.0);
    (less_one / (less_one + 2.0)).copysign(x)
}

/// `(p, r)`, where e^x = p (1 + r) and p is a power of two, for x from −87 to 88; nearest of them outside.
#[inline(always)]
fn split(x: f32) -> (f32, f32) {
    // Adding this number rounds to an integer, which is then in the lower bits.
    const ROUND: f32 = 12_582_912.0;
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;
    let clamped = x.clamp(-87.0, 88.0);
    let rounded = clamped * std::f32::consts::LOG2_E + ROUND;
    let whole = rounded - ROUND;
    let rest = clamped - whole * LN_2_HIGH - whole * LN_2_LOW;
    // Coefficients of the Cephes library's expf.
    let mut sum = 1.987_569_1e-4;
    for coefficient in [1.398_2e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        sum = sum * rest + coefficient;
    }
    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).wrapping_add(127) << 23;
    (f32::from_bits(exponent), sum * rest * rest + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_equal_those_of_the_standard_library() {
        for step in -86_999..88_000 {
            let x = step as f32 * 1e-3;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "{x}: {} for {exact}", exp(x));
        }
        assert_eq!([exp(f32::NEG_INFINITY), exp(-1e9), exp(0.0)], [0.0, 0.0, 1.0]);
        assert!(exp(f32::NAN).is_nan());
    }
    #[test]
    fn sigmoid_and_tanh_are_accurate_and_saturate() {
        for step in -90_000..90_000 {
            let x = step as f32 * 9.7e-4;
            let (wide, close) = (f64::from(x), |ours: f32, exact: f64| {
                assert!((f64::from(ours) - exact).abs() <= 4e-7 * exact.abs(), "{ours} for {exact} at {x}");
            });
            close(tanh(x), wide.tanh());
            close(tanh(x * 1e-4), f64::from(x * 1e-4).tanh());
            if x > -87.0 {
                close(sigmoid(x), 1.0 / (1.0 + (-wide).exp()));
            }
        }
        for large in [100.0, f32::MAX, f32::INFINITY] {
            assert_eq!([tanh(large), tanh(-large)], [1.0, -1.0]);
            assert_eq!([sigmoid(large), sigmoid(-large)], [1.0, 0.0]);
        }
        assert_eq!([tanh(0.0), tanh(1e-30), sigmoid(0.0)], [0.0, 1e-30, 0.5]);
        assert!(tanh(f32::NAN).is_nan() && sigmoid(f32::NAN).is_nan());
    }
}
