//! The rows of a run's tables, as training writes them and a report reads them.

use serde::{Deserialize, Serialize};

/// A row of `steps.csv`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct StepRow {
    pub step: usize,
    pub epoch: usize,
    /// Mean over the samples of all ranks.
    pub loss: f64,
    pub lr: f64,
    pub images_per_second: f64,
}

/// A row of `epochs.csv`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct EpochRow {
    pub epoch: usize,
    pub train_loss: f64,
    pub test_loss: f64,
    /// 0 to 1.
    pub test_accuracy: f64,
    pub seconds: f64,
}

/// A row of `ranks.csv`: where one rank's time went in one epoch.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct RankRow {
    pub epoch: usize,
    pub rank: usize,
    pub seconds: f64,
    pub data_wait_seconds: f64,
    pub gradient_wait_seconds: f64,
}
