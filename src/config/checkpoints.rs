//! Flags for checkpoints and early stopping.

use crate::context::values::positive;
use anyhow::{Result, anyhow, bail};
use clap::Args;
use collective::metric::MetricInfo;
use serde::Serialize;
use std::path::{Path, PathBuf};

#[derive(Args, Clone, Debug, Serialize)]
pub struct CheckpointArgs {
    /// Optimizer steps between checkpoints, besides those at the end of an epoch
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Checkpoints")]
    pub save_every: Option<usize>,
    /// Number of newest checkpoints to keep, besides the best one
    #[arg(long, default_value_t = 2, value_name = "N", value_parser = positive, hide_short_help = true, help_heading = "Checkpoints")]
    pub keep_last: usize,
    /// Resume from a checkpoint or from the newest one of a run folder [default: --run-dir]
    ///
    /// Without PATH, training starts from the beginning if --run-dir has no checkpoint yet.
    #[arg(long, value_name = "PATH", help_heading = "Checkpoints")]
    #[serde(skip)]
    pub resume: Option<Option<PathBuf>>,
    /// Stop after PATIENCE epochs in a row without improvement
    #[arg(long, value_name = "PATIENCE", value_parser = positive, hide_short_help = true, help_heading = "Checkpoints")]
    pub early_stop: Option<usize>,
    /// Evaluation metric that selects the best epoch, such as loss or accuracy
    #[arg(
        long,
        default_value = "loss",
        value_name = "METRIC",
        hide_short_help = true,
        help_heading = "Checkpoints"
    )]
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

    /// Returns the metric that `--monitor` names.
    ///
    /// # Errors
    /// If it is not one of the model's `metrics`.
    pub fn monitored(&self, metrics: &[MetricInfo]) -> Result<MetricInfo> {
        let names = || metrics.iter().map(|metric| metric.name.as_str()).collect::<Vec<_>>().join(", ");
        let found = metrics.iter().find(|metric| metric.name == self.monitor);
        found
            .cloned()
            .ok_or_else(|| anyhow!("--monitor {}: this model's metrics are {}", self.monitor, names()))
    }
}
