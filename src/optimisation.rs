//! The flags about what training minimises and how: the learning rate's curve, the optimizer, and what
//! keeps the network from learning its images by heart.

use crate::augment::Augment;
use clap::Args;
use collective::schedule::Curve;
use serde::{Serialize, Serializer};
use std::{fmt, str::FromStr};

#[derive(Args, Clone, Copy, Debug, Serialize)]
#[command(next_help_heading = "Training")]
pub struct OptimisationArgs {
    /// constant; one-cycle or one-cycle:PCT_START, which rises over that part of the run [0.3] and falls over
    /// the rest; or cosine, which falls all the way
    #[arg(long, default_value = "constant", value_name = "CURVE")]
    pub lr_schedule: Curve,
    /// Nesterov's momentum
    #[arg(long)]
    pub nesterov: bool,
    /// Weight decay (L2), of all parameters
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = crate::cli::rate)]
    pub weight_decay: f64,
    /// Part of each label that is shared out evenly over all classes, in training only
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = crate::cli::probability)]
    pub label_smoothing: f64,
    /// Change training images at random: none, or shift[:PIXELS], rotate[:DEGREES] and zoom[:PERCENT] with
    /// commas between
    #[arg(long, default_value = "none", value_name = "HOW")]
    pub augment: Augment,
}

/// `--epochs`: a number of them, perhaps with a part of one more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Epochs(f64);

impl Epochs {
    /// With the last one, though it be only begun.
    pub fn begun(self) -> usize {
        self.0.ceil() as usize
    }

    /// Optimizer steps to train for, where an epoch has `epoch_steps`; at least one.
    pub fn steps(self, epoch_steps: usize) -> usize {
        ((self.0 * epoch_steps as f64).round() as usize).max(1)
    }

    /// Whether the last epoch is not to be finished.
    pub fn is_fraction(self) -> bool {
        self.0.fract() != 0.0
    }
}

impl FromStr for Epochs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let what = "a number above 0, such as 3 or 0.5";
        crate::cli::bounded(text, what, |epochs| epochs > 0.0 && epochs <= 1e9).map(Epochs)
    }
}

impl fmt::Display for Epochs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
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
}
