//! What the test set says about a model.

use collective::strategy::EpochReport;
use serde::{Deserialize, Serialize};

/// The test set's result, from the totals that [`Classification`](collective::metric::Classification) has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean over all test images.
    pub loss: f64,
    /// Correct answers over all test images, 0 to 1.
    pub accuracy: f64,
}

impl Evaluation {
    pub fn of(report: &EpochReport) -> Self {
        let mean = |i: usize| {
            report.valid_totals.get(i).copied().unwrap_or(0.0) / report.valid_samples.max(1) as f64
        };
        Self { loss: mean(0), accuracy: mean(1) }
    }
}
