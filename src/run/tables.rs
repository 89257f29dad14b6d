//! The rows of a run's tables, as training writes them and a report reads them.

use serde::{Deserialize, Serialize};

/// A row of `steps.csv`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StepRow {
    pub step: usize,
    pub epoch: usize,
    /// Mean over the samples of all ranks.
    pub loss: f64,
    pub lr: f64,
    pub samples_per_second: f64,
    /// Factor of the loss; only in f16.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// 1 if the optimizer skipped the step because gradients overflowed, or 0; only in f16.
    #[serde(default)]
    pub skipped: Option<u8>,
}

/// A row of `epochs.csv`.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct EpochRow {
    pub epoch: usize,
    pub train_loss: f64,
    /// Only without `--valid-split`, likewise `test_accuracy`.
    #[serde(default)]
    pub test_loss: Option<f64>,
    /// 0 to 1; only of a classifier.
    #[serde(default)]
    pub test_accuracy: Option<f64>,
    /// Only with `--valid-split`, likewise `valid_accuracy`.
    #[serde(default)]
    pub valid_loss: Option<f64>,
    #[serde(default)]
    pub valid_accuracy: Option<f64>,
    pub seconds: f64,
}

impl EpochRow {
    /// Mean loss of the evaluation.
    pub fn loss(&self) -> Option<f64> {
        self.valid_loss.or(self.test_loss)
    }

    /// Accuracy of the evaluation, 0 to 1.
    pub fn accuracy(&self) -> Option<f64> {
        self.valid_accuracy.or(self.test_accuracy)
    }
}

/// A row of `ranks.csv`: where one rank's time went in one epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RankRow {
    pub epoch: usize,
    pub rank: usize,
    pub seconds: f64,
    pub data_wait_seconds: f64,
    pub gradient_wait_seconds: f64,
}

/// A row of `misclassified.csv`: a wrong answer of a classifier.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mistake {
    /// Its number in the test set.
    pub test_image: usize,
    pub label: usize,
    pub answer: usize,
    /// What the model gave the label and its answer, 0 to 1.
    pub label_probability: f64,
    pub answer_probability: f64,
}

/// Columns of `misclassified.png`, whose squares are the pictures of the mistakes in their order, each with a frame
/// of a thirtieth of its side.
pub const MISTAKE_COLUMNS: usize = 6;
