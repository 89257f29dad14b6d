//! Result of an evaluation.

use crate::config::{Config, Monitor};
use collective::strategy::EpochReport;
use serde::{Deserialize, Serialize};

/// The samples that are evaluated after every epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EvaluatedSet {
    /// The test set, of a run without `--valid-split`.
    Test,
    /// Training samples that are held out.
    Valid,
}

impl EvaluatedSet {
    /// The set of a run with this configuration.
    pub fn of(config: &Config) -> Self {
        if config.valid_samples > 0 { EvaluatedSet::Valid } else { EvaluatedSet::Test }
    }

    /// `test` or `valid`.
    pub fn name(self) -> &'static str {
        match self {
            EvaluatedSet::Test => "test",
            EvaluatedSet::Valid => "valid",
        }
    }
}

/// Means over the samples of an evaluation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    /// Mean loss over all samples.
    pub loss: f64,
    /// Accuracy over all samples, 0 to 1; `None` unless the model is a classifier.
    pub accuracy: Option<f64>,
}

impl Evaluation {
    /// Computes the means of an epoch's report.
    pub fn of(report: &EpochReport) -> Self {
        let mean = |i: usize| Some(report.valid_totals.get(i)? / report.valid_samples.max(1) as f64);
        Self { loss: mean(0).unwrap_or_default(), accuracy: mean(1) }
    }

    /// Whether this evaluation is better than `old` in the monitored metric; NaN never is.
    pub fn is_better(&self, old: &Self, monitor: Monitor) -> bool {
        match monitor {
            Monitor::Loss => self.loss < old.loss,
            Monitor::Accuracy => self.accuracy > old.accuracy,
        }
    }
}
