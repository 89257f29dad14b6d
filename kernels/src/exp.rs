//! Exponential functions and logarithms as plain arithmetic, which the compiler vectorises.

/// e^x for x up to 88, with a relative error below 3e-7; 0 below −87.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    let (power, rest) = split(x);
    if x < -87.0 { 0.0 } else { (rest + 1.0) * power }
}

/// e^x − 1 for x up to 88, with a relative error below 4e-7; −1 below −87.
#[inline(always)]
pub fn exp_m1(x: f32) -> f32 {
    let (power, rest) = split(x);
    rest * power + (power - 1.0)
}

/// The natural logarithm, with an error below 1.2e-7 of the larger of its magnitude and 1; −∞ of 0, NaN below.
#[inline(always)]
pub fn ln(x: f32) -> f32 {
    // Subnormal numbers are scaled to normal ones.
    let small = x < f32::MIN_POSITIVE;
    let (x, less) = if small { (x * 8_388_608.0, 23.0) } else { (x, 0.0) };
    // x = 2^exponent (1 + y), where 1 + y is between √½ and √2.
    let half = f32::to_bits(std::f32::consts::FRAC_1_SQRT_2);
    let shifted = x.to_bits().wrapping_sub(half) as i32;
    let exponent = (shifted >> 23) as f32;
    let mantissa = f32::from_bits((shifted & 0x7F_FFFF) as u32 + half);
    let whole = (exponent - less) * std::f32::consts::LN_2 + ln_1p(mantissa - 1.0);
    let finite = if x == f32::INFINITY { x } else { whole };
    if x > 0.0 {
        finite
    } else if x == 0.0 {
        f32::NEG_INFINITY
    } else {
        f32::NAN
    }
}

/// The natural logarithm of 1 + x, for x from −0.3 to 1, with a relative error below 3e-7.
#[inline(always)]
pub fn ln_1p(x: f32) -> f32 {
    // 2 artanh(x / (2 + x))
    let s = x / (2.0 + x);
    let square = s * s;
    let mut sum = 1.0 / 13.0;
    for divisor in [11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
        sum = sum * square + 1.0 / divisor;
    }
    2.0 * s * sum
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
    let less_one = exp_m1(2.0 * x.abs());
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
    fn logarithms_and_differences_equal_those_of_the_standard_library() {
        for step in 1..200_000 {
            let x = 1.0f32 + step as f32 * 3e-4;
            for x in [x, 1.0 / x, x * 1e30, 1e-37 / x] {
                let exact = f64::from(x).ln();
                let error = (f64::from(ln(x)) - exact).abs();
                assert!(error <= 1.2e-7 * exact.abs().max(1.0), "{x}: {} for {exact}", ln(x));
            }
            for x in [step as f32 * 5e-6, step as f32 * -1.5e-6, 1e-20 * x] {
                let exact = f64::from(x).ln_1p();
                assert!((f64::from(ln_1p(x)) / exact - 1.0).abs() < 3e-7, "{x}: {} for {exact}", ln_1p(x));
                let exact = f64::from(-x).exp_m1();
                assert!((f64::from(exp_m1(-x)) / exact - 1.0).abs() < 4e-7, "{x}: {}", exp_m1(-x));
            }
        }
        assert_eq!(
            [0.0, -0.0, f32::INFINITY, 1.0].map(ln),
            [f32::NEG_INFINITY, f32::NEG_INFINITY, f32::INFINITY, 0.0]
        );
        assert!([-1.0, f32::NEG_INFINITY, f32::NAN].map(ln).iter().all(|ln| ln.is_nan()));
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
