//! Optimizers with the names of [`burn::optim`], which are fast on a CPU: see [`kernels::optim`].

pub use kernels::optim::*;

use crate::context::values::{probability, rate};
use clap::Args;
use serde::Serialize;

/// Flags of SGD and the loss of a classifier.
#[derive(Args, Clone, Copy, Debug, Serialize)]
#[command(about = None, long_about = None, next_help_heading = "Training")]
pub struct SgdArgs {
    /// SGD momentum, without dampening
    #[arg(long, default_value_t = 0.9, value_name = "M", value_parser = probability, hide_short_help = true)]
    pub momentum: f64,
    /// Weight decay (L2) of all parameters
    #[arg(long, default_value_t = 0.0, value_name = "DECAY", value_parser = rate, hide_short_help = true)]
    pub weight_decay: f64,
    /// Label smoothing of the training loss
    #[arg(long, default_value_t = 0.0, value_name = "PART", value_parser = probability, hide_short_help = true)]
    pub label_smoothing: f64,
}
