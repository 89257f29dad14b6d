//! Value types of device and process flags, and number parsers.

use clap::ValueEnum;
use std::ops::RangeInclusive;

/// Value of `--mode`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    Auto,
    /// One device
    Single,
    /// Several devices in one process, a thread per device
    Dp,
    /// Several devices, a process per device
    Ddp,
}

/// Value of `--dp-reduce`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DpReduceArg {
    /// Sum on the main device, one device after the other
    Main,
    /// Sum in pairs
    Tree,
    /// All-reduce over all devices, with NCCL between NVIDIA GPUs
    AllReduce,
}

/// Parses an integer from 1 to 10⁹. The limit keeps sums and products of flags from overflowing.
///
/// # Errors
/// If `s` is not such a number.
pub fn positive(s: &str) -> Result<usize, String> {
    whole(1..=1_000_000_000)(s)
}

/// Returns a parser of integers in `range`.
pub fn whole(range: RangeInclusive<usize>) -> impl Fn(&str) -> Result<usize, String> + Clone {
    move |s| {
        let number = s.parse().ok().filter(|n| range.contains(n));
        number.ok_or_else(|| format!("expected a whole number from {} to {}", range.start(), range.end()))
    }
}

/// Returns a parser of finite numbers that satisfy `fits`. `what` describes them in errors.
pub fn number(what: &'static str, fits: fn(f64) -> bool) -> impl Fn(&str) -> Result<f64, String> + Clone {
    move |s| {
        let number = s.parse().ok().filter(|&x: &f64| x.is_finite() && fits(x));
        number.ok_or_else(|| format!("expected {what}"))
    }
}

/// Parses a number in `0..1`.
///
/// # Errors
/// If `s` is not such a number.
pub fn probability(s: &str) -> Result<f64, String> {
    number("a number from 0 to below 1", |x| (0.0..1.0).contains(&x))(s)
}

/// Parses a non-negative number.
///
/// # Errors
/// If `s` is not such a number.
pub fn rate(s: &str) -> Result<f64, String> {
    number("a number from 0", |x| x >= 0.0)(s)
}

/// Parses a number above 0.
///
/// # Errors
/// If `s` is not such a number, or above 10⁹.
pub fn above_zero(s: &str) -> Result<f64, String> {
    number("a number above 0, at most 1e9", |x| x > 0.0 && x <= 1e9)(s)
}

/// Parses a duration in seconds, from 0.001 to 10⁶.
///
/// # Errors
/// If `s` is not such a number.
pub fn seconds(s: &str) -> Result<f64, String> {
    number("a number of seconds from 0.001 to 1e6", |x| (1e-3..=1e6).contains(&x))(s)
}
