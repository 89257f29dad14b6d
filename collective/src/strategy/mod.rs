//! Strategies for burn-train that train one model on many ranks or devices, and what they report.

mod callback;
mod checkpoints;
mod compute;
mod epoch;
mod evaluate;
mod launched;
mod noop_renderer;
mod parallel;
mod run;
mod settings;
mod snapshot;

pub use callback::{Callback, Distributed, Join};
pub use checkpoints::{CheckpointSink, Checkpoints, StopRequest};
pub use compute::{ComputeBatch, OneDevice, ReplicaDevices};
pub use noop_renderer::NoopRenderer;
pub use parallel::{DdpStrategy, DpStrategy, ParallelStrategy, collective_error};
pub use snapshot::{Position, Snapshot};

use burn::train::{InferenceStep, TrainStep};
use serde::{Deserialize, Serialize};
use std::{sync::Arc, time::Duration};

/// Input of a model's training step.
pub type TrainInput<M> = <M as TrainStep>::Input;
/// Output of a model's training step.
pub type TrainedOutput<M> = <M as TrainStep>::Output;
/// Input of a model's evaluation step.
pub type ValidInput<M> = <M as InferenceStep>::Input;
/// Output of a model's evaluation step.
pub type ValidOutput<M> = <M as InferenceStep>::Output;

/// One optimizer step, over all ranks.
#[derive(Clone, Copy, Debug)]
pub struct StepReport {
    /// Counted from 1 over the whole run.
    pub step: usize,
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over the samples of the global batch.
    pub loss: f64,
    /// Learning rate.
    pub lr: f64,
    /// Samples of this step over all ranks.
    pub samples: usize,
    /// From the end of the previous step to the end of this one.
    pub elapsed: Duration,
    /// Factor by which this step's loss was scaled; `None` except for f16.
    pub loss_scale: Option<f32>,
    /// Whether the optimizer skipped this step because gradients overflowed f16.
    pub skipped: bool,
}

/// One epoch, over all ranks.
#[derive(Clone, Debug, Default)]
pub struct EpochReport {
    /// Counted from 1.
    pub epoch: usize,
    /// Mean over every training sample seen in this epoch.
    pub train_loss: f64,
    /// How many these were, over all ranks.
    pub train_samples: usize,
    /// Totals over the whole evaluation set, as [`StepOutput::totals`](crate::metric::StepOutput::totals)
    /// orders them; each sample counted once.
    pub valid_totals: Vec<f64>,
    /// Samples of the evaluation set.
    pub valid_samples: usize,
    /// Training alone, without evaluation; with what a run did before it was resumed.
    pub train_time: Duration,
    /// Training and evaluation.
    pub elapsed: Duration,
    /// Digest of all parameters and buffers, found equal on all ranks.
    pub digest: String,
    /// Where each rank's training time went.
    pub ranks: Vec<RankTime>,
    /// Steps that the optimizer skipped because gradients overflowed f16.
    pub skipped_steps: usize,
    /// Factor by which the next step's loss is scaled; `None` except for f16.
    pub loss_scale: Option<f32>,
}

/// Breakdown of one rank's training time in one epoch and one process: a run that was resumed in the
/// middle of an epoch counts only the time since.
///
/// The rest of [`training`](Self::training) is computation: forward, backward, the optimizer,
/// and communication that overlaps with backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTime {
    /// All steps, without evaluation.
    pub training: Duration,
    /// Waiting for the next batch.
    pub data: Duration,
    /// Waiting for the gradients of all ranks after backward. Where gradients stay in the
    /// devices' memory, the devices wait and the host does not: then it is only what the host waited.
    pub gradients: Duration,
}

/// Observes a run. Called on every rank with the same global values; all methods have defaults.
pub trait Observer: Send + Sync {
    /// An epoch begins, with this many optimizer steps and samples left in it.
    fn epoch_started(&self, _epoch: usize, _steps: usize, _samples: usize) {}
    /// An optimizer step is done.
    fn step_done(&self, _report: &StepReport) {}
    /// An evaluation begins, over this many samples of all ranks.
    fn evaluation_started(&self, _epoch: usize, _samples: usize) {}
    /// An epoch and its evaluation are done.
    fn epoch_done(&self, _report: &EpochReport) {}
    /// The test set of [`with_test`](ParallelStrategy::with_test) is evaluated. The report is that of the last epoch with
    /// the totals of the test set.
    fn tested(&self, _report: &EpochReport) {}
    /// A [`Callback`] or a metric given to [`with_metric`](ParallelStrategy::with_metric) has a value for an epoch, over
    /// all ranks.
    fn metric_logged(&self, _epoch: usize, _name: &str, _value: &str) {}
    /// A warning for the user.
    fn warned(&self, _message: &str) {}
}

/// Several observers, called in turn.
impl Observer for Vec<Arc<dyn Observer>> {
    fn epoch_started(&self, epoch: usize, steps: usize, samples: usize) {
        self.iter().for_each(|o| o.epoch_started(epoch, steps, samples));
    }
    fn step_done(&self, report: &StepReport) {
        self.iter().for_each(|o| o.step_done(report));
    }
    fn evaluation_started(&self, epoch: usize, samples: usize) {
        self.iter().for_each(|o| o.evaluation_started(epoch, samples));
    }
    fn epoch_done(&self, report: &EpochReport) {
        self.iter().for_each(|o| o.epoch_done(report));
    }
    fn tested(&self, report: &EpochReport) {
        self.iter().for_each(|o| o.tested(report));
    }
    fn metric_logged(&self, epoch: usize, name: &str, value: &str) {
        self.iter().for_each(|o| o.metric_logged(epoch, name, value));
    }
    fn warned(&self, message: &str) {
        self.iter().for_each(|o| o.warned(message));
    }
}
