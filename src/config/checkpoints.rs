//! Flags for checkpoints and early stopping.

use crate::context::values::positive;
use anyhow::{Result, bail};
use clap::Args;
use collective::{metric::MetricInfo, strategy::EpochReport};
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug, Serialize)]
pub struct CheckpointArgs {
    /// Optimizer steps between checkpoints, besides those at the end of an epoch
    #[arg(long, value_name = "N", value_parser = positive, help_heading = "Checkpoints")]
    pub save_every: Option<usize>,
    /// Number of newest checkpoints to keep, besides the best one
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = positive, help_heading = "Checkpoints")]
    pub keep_last: usize,
    /// Load the best checkpoint at the end: its weights are tested, saved and exported
    #[arg(long, help_heading = "Checkpoints")]
    pub load_best: bool,
    /// Resume from a checkpoint or from the newest one of a run folder [default: --run-dir]
    ///
    /// Without PATH, training starts from the beginning if --run-dir has no checkpoint yet.
    #[arg(long, value_name = "PATH", help_heading = "Checkpoints")]
    #[serde(skip)]
    pub resume: Option<Option<PathBuf>>,
    /// Stop after PATIENCE epochs in a row without improvement
    #[arg(long, value_name = "PATIENCE", value_parser = positive, help_heading = "Checkpoints")]
    pub early_stop: Option<usize>,
    /// Metric that selects the best epoch, such as loss, accuracy or train_loss
    #[arg(long, default_value = "loss", value_name = "METRIC", help_heading = "Checkpoints")]
    pub monitor: String,
}

impl CheckpointArgs {
    /// Validates `--resume`.
    ///
    /// # Errors
    /// If `--resume` names no run and `--run-dir` is missing, or its path is not a folder.
    pub fn check(&self, run_dir: Option<&Path>) -> Result<()> {
        match &self.resume {
            Some(None) if run_dir.is_none() => {
                bail!("--resume requires a run: add --run-dir DIR, or --resume PATH")
            }
            Some(Some(path)) if !path.is_dir() => {
                bail!("--resume {}: there is no such folder", path.display())
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The metric that selects the best epoch.
#[derive(Clone, Debug)]
pub struct Monitor {
    pub metric: MetricInfo,
    /// Whether its values are means over the training samples of an epoch.
    pub of_training: bool,
}

impl Monitor {
    /// Value of `--monitor`.
    pub fn flag(&self) -> String {
        format!("{}{}", if self.of_training { "train_" } else { "" }, self.metric.name)
    }

    /// Value in an epoch, if it is finite.
    pub fn value(&self, report: &EpochReport) -> Option<f64> {
        let values = if self.of_training { &report.train } else { &report.metrics };
        let value = values.iter().find(|value| value.metric.name == self.metric.name)?.value;
        Some(value).filter(|value| value.is_finite())
    }

    /// Whether `new` is better than `old`. A finite value is better than none.
    pub fn is_better(&self, new: Option<f64>, old: Option<f64>) -> bool {
        match (new, old) {
            (Some(new), Some(old)) if self.metric.higher_is_better => new > old,
            (Some(new), Some(old)) => new < old,
            (new, _) => new.is_some(),
        }
    }
}
