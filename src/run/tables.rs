//! Row types of a run's CSV tables.

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
    /// Loss scale; only with f16.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// 1 if the step was skipped because gradients overflowed, otherwise 0; only with f16.
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
    /// 0 to 1; `None` unless the model is a classifier.
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
