//! Result of a training run.

use crate::process::lock;
use collective::strategy::{EpochReport, Observer};
use std::sync::Mutex;

/// Result of [`Trainer::fit`](crate::Trainer::fit), the same on every rank.
#[derive(Clone, Debug)]
pub struct Trained<M> {
    /// The model for inference, with the weights after training.
    pub model: M,
    /// Reports of the epochs that this process has trained.
    pub epochs: Vec<EpochReport>,
    /// Report of the test set at the end of a run with a validation set.
    pub test: Option<EpochReport>,
    /// Whether training has ended, and was not stopped by a signal or replaced by `--find-lr` or `--print-config`.
    pub is_complete: bool,
}

impl<M> Trained<M> {
    /// The result of a program that does not train.
    pub(super) fn without_training(model: M) -> Self {
        Self { model, epochs: Vec::new(), test: None, is_complete: false }
    }

    /// Value of a metric in the last evaluation: of the test set, if the run has evaluated it.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.test.as_ref().or(self.epochs.last())?.metric(name)
    }
}

/// Observer that collects the reports of a run.
#[derive(Default)]
pub(super) struct History(Mutex<(Vec<EpochReport>, Option<EpochReport>)>);

impl History {
    /// The reports of the epochs and of the test set so far.
    pub fn take(&self) -> (Vec<EpochReport>, Option<EpochReport>) {
        std::mem::take(&mut *lock(&self.0))
    }
}

impl Observer for History {
    fn epoch_done(&self, report: &EpochReport) {
        lock(&self.0).0.push(report.clone());
    }

    fn tested(&self, report: &EpochReport) {
        lock(&self.0).1 = Some(report.clone());
    }
}
