//! Row types of a run's CSV tables.

use collective::metric::MetricInfo;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A row of `steps.csv`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StepRow {
    pub step: usize,
    pub epoch: usize,
    /// Mean over the samples of all ranks.
    pub loss: f64,
    pub lr: f64,
    pub samples_per_second: f64,
    /// Loss scale; only with f16.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// 1 if the step was skipped because gradients overflowed, otherwise 0; only with f16.
    #[serde(default)]
    pub skipped: Option<u8>,
}

/// A row of `epochs.csv`: its numbers by column.
///
/// The columns are `epoch`, `train_loss`, each of the model's metrics as `test_METRIC` and `valid_METRIC`, one of which
/// is empty, `seconds`, and the values of callbacks by their names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct EpochRow(pub BTreeMap<String, Option<f64>>);

impl EpochRow {
    /// Value in a column; `None` if the cell is empty.
    pub fn get(&self, column: &str) -> Option<f64> {
        self.0.get(column).copied().flatten()
    }

    /// Value of a metric in the evaluation of the epoch.
    pub fn metric(&self, metric: &MetricInfo) -> Option<f64> {
        ["valid", "test"].iter().find_map(|set| self.get(&format!("{set}_{}", metric.name)))
    }
}

/// A row of `ranks.csv`: training time of one rank in one epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RankRow {
    pub epoch: usize,
    pub rank: usize,
    pub seconds: f64,
    pub data_wait_seconds: f64,
    pub gradient_wait_seconds: f64,
}

/// A row of `misclassified.csv`: a misclassified test image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mistake {
    /// Index in the test set.
    pub test_image: usize,
    pub label: usize,
    /// Predicted class.
    pub answer: usize,
    /// Predicted probability of the label, 0 to 1.
    pub label_probability: f64,
    /// Predicted probability of the predicted class, 0 to 1.
    pub answer_probability: f64,
}

/// Number of columns of `misclassified.png`.
///
/// It shows the images of `misclassified.csv` in order, each with a frame of 1/30 of its side.
pub const MISTAKE_COLUMNS: usize = 6;
