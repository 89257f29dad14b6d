//! Flags for training length, learning rate and the learning-rate range test.

use crate::context::values::{number, whole};
use anyhow::{Result, bail};
use clap::Args;
use collective::lr::LrSchedule;
use serde::{Serialize, Serializer};
use std::str::FromStr;

/// Learning-rate warm-up and schedule flags.
#[derive(Args, Clone, Copy, Debug, Serialize)]
#[command(next_help_heading = "Training")]
pub struct RateArgs {
    /// Epochs of learning-rate warm-up; --warmup-start-factor sets its first rate
    #[arg(
        long, default_value_t = 0.0, value_name = "EPOCHS",
        value_parser = number("a number from 0 to 1e6", |epochs| (0.0..=1e6).contains(&epochs))
    )]
    pub warmup_epochs: f64,
    /// Warm-up start, relative to the learning rate, as in PyTorch's LinearLR
    ///
    /// By default the warm-up starts from --lr if --scale-lr raises the rate, otherwise from 1/3.
    // The values that PyTorch's `LinearLR` accepts.
    #[arg(
        long, value_name = "F",
        value_parser = number("a number above 0 and at most 1", |factor| factor > 0.0 && factor <= 1.0)
    )]
    pub warmup_start_factor: Option<f64>,
    /// Learning-rate schedule: constant, one-cycle:PCT_START or cosine
    ///
    /// one-cycle rises over PCT_START of the run (0.3 by default) and falls over the rest.
    #[arg(long, default_value = "constant", value_name = "CURVE")]
    pub lr_schedule: LrSchedule,
    /// Multiply the learning rate by FACTOR after PATIENCE epochs in a row without improvement of --monitor
    #[arg(long, value_name = "FACTOR:PATIENCE")]
    pub reduce_lr_on_plateau: Option<Plateau>,
}

impl RateArgs {
    /// Validates combinations of flags.
    ///
    /// # Errors
    /// If a flag would have no effect.
    pub fn check(&self) -> Result<()> {
        let warmup_epochs = self.warmup_epochs;
        if matches!(self.lr_schedule, LrSchedule::OneCycle { .. }) && warmup_epochs > 0.0 {
            bail!(
                "--warmup-epochs {warmup_epochs}: --lr-schedule one-cycle includes a warm-up; give its length as one-cycle:PCT_START"
            );
        }
        if self.warmup_start_factor.is_some() && warmup_epochs == 0.0 {
            bail!("--warmup-start-factor needs --warmup-epochs above 0");
        }
        Ok(())
    }
}

/// Value of `--reduce-lr-on-plateau`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Plateau {
    /// Factor of the learning rate, above 0 and below 1.
    pub factor: f64,
    /// Number of epochs without improvement.
    pub patience: usize,
}

impl FromStr for Plateau {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parts = text.split_once(':');
        match parts.and_then(|(factor, patience)| Some((factor.parse().ok()?, patience.parse().ok()?))) {
            Some((factor, patience)) if 0.0 < factor && factor < 1.0 && patience > 0 => {
                Ok(Plateau { factor, patience })
            }
            Some(_) | None => {
                Err("expected FACTOR:PATIENCE with 0 < FACTOR < 1 and PATIENCE from 1, such as 0.1:5".into())
            }
        }
    }
}

impl Serialize for Plateau {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{}:{}", self.factor, self.patience))
    }
}

/// Learning rate and length of a run, for a scheduler of the program.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LrPlan {
    /// `--lr` times the factor of `--scale-lr`.
    pub lr: f64,
    /// Number of optimizer steps of an epoch.
    pub epoch_steps: usize,
    /// Number of optimizer steps of the run.
    pub total_steps: usize,
}

/// Value of `--epochs`: a number of epochs, possibly fractional.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs(f64);

impl Epochs {
    /// Number of epochs, counting a partial one.
    pub fn begun(self) -> usize {
        self.0.ceil() as usize
    }

    /// Number of optimizer steps for epochs of `epoch_steps` steps; at least one.
    pub fn steps(self, epoch_steps: usize) -> usize {
        ((self.0 * epoch_steps as f64).round() as usize).max(1)
    }

    /// Whether the last epoch is partial.
    pub fn is_fraction(self) -> bool {
        self.0.fract() != 0.0
    }
}

impl FromStr for Epochs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parse = number("a number above 0, such as 3 or 0.5", |epochs| epochs > 0.0 && epochs <= 1e9);
        parse(text).map(Epochs)
    }
}

impl Serialize for Epochs {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.is_fraction() {
            serializer.serialize_f64(self.0)
        } else {
            serializer.serialize_u64(self.0 as u64)
        }
    }
}

/// Flags of the learning-rate range test.
#[derive(Args, Clone, Copy, Debug)]
#[command(next_help_heading = "Training")]
pub struct FindLrArgs {
    /// Test learning rates from MIN to MAX in place of training, and suggest one
    ///
    /// MIN and MAX are values of --lr. The run folder gets lr_find.csv and lr_find.svg, and no weights.
    #[arg(
        long, value_name = "MIN..MAX", num_args = 0..=1, require_equals = true,
        default_missing_value = "1e-6..1", conflicts_with_all = ["resume", "export"]
    )]
    pub find_lr: Option<LrRange>,
    /// Maximum number of optimizer steps of --find-lr
    #[arg(
        long, default_value_t = 100, value_name = "N", value_parser = whole(10..=1_000_000)
    )]
    pub find_lr_steps: usize,
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
    fn epochs_are_whole_or_in_part() {
        let epochs = |text: &str| text.parse::<Epochs>();
        let half = epochs("2.5").expect("good");
        assert_eq!((half.begun(), half.steps(11), half.is_fraction()), (3, 28, true));
        let whole = epochs("3").expect("good");
        assert_eq!((whole.begun(), whole.steps(11), whole.is_fraction()), (3, 33, false));
        assert_eq!(serde_json::json!([half, whole]).to_string(), "[2.5,3]");
        assert_eq!(epochs("0.001").expect("good").steps(10), 1);
        for bad in ["0", "-1", "NaN", "inf", "two", ""] {
            assert!(epochs(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_plateau_has_a_factor_below_1_and_a_patience() {
        assert_eq!("0.1:5".parse(), Ok(Plateau { factor: 0.1, patience: 5 }));
        for bad in ["", "0.1", "0.1:", "0.1:0", "1:5", "0:5", "NaN:5", "-1:5", "0.1:-1", "0.1:5:1"] {
            assert!(bad.parse::<Plateau>().is_err(), "{bad}");
        }
    }

    #[test]
    fn ranges_are_increasing_and_positive() {
        assert_eq!("1e-6..1".parse(), Ok(LrRange { min: 1e-6, max: 1.0 }));
        for bad in ["", "1", "1..", "0..1", "1..1", "2..1", "-1..1", "NaN..1", "1..NaN", "1..inf", "a..b"] {
            assert!(bad.parse::<LrRange>().is_err(), "{bad}");
        }
    }
}
