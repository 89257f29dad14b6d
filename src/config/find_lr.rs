//! Flags of the learning-rate range test.

use crate::context::values::whole;
use clap::Args;
use std::str::FromStr;

#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Training")]
pub struct FindLrArgs {
    /// Test learning rates from MIN to MAX in place of training, and suggest one
    ///
    /// MIN and MAX are values of --lr. The run folder gets lr_find.csv and lr_find.svg, and no weights.
    #[arg(
        long, value_name = "MIN..MAX", num_args = 0..=1, require_equals = true, default_missing_value = "1e-6..1",
        conflicts_with_all = ["resume", "export"], hide_short_help = true
    )]
    pub find_lr: Option<LrRange>,
    /// Maximum number of optimizer steps of --find-lr
    #[arg(long, default_value_t = 100, value_name = "N", value_parser = steps, hide_short_help = true)]
    pub find_lr_steps: usize,
}

/// Parses a number of steps of a range test.
fn steps(text: &str) -> Result<usize, String> {
    whole(text, 10..=1_000_000)
}

/// Value of `--find-lr`: the first and the last value of `--lr` of a range test.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrRange {
    pub min: f64,
    pub max: f64,
}

impl FromStr for LrRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once("..").and_then(|(min, max)| Some((min.parse().ok()?, max.parse().ok()?)));
        match range {
            Some((min, max)) if 0.0 < min && min < max && f64::is_finite(max) => Ok(LrRange { min, max }),
            Some(_) | None => Err("expected MIN..MAX with 0 < MIN < MAX, such as 1e-6..1".into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_increasing_and_positive() {
        assert_eq!("1e-6..1".parse(), Ok(LrRange { min: 1e-6, max: 1.0 }));
        for bad in ["", "1", "1..", "0..1", "1..1", "2..1", "-1..1", "NaN..1", "1..NaN", "1..inf", "a..b"] {
            assert!(bad.parse::<LrRange>().is_err(), "{bad}");
        }
    }
}
