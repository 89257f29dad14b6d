//! Learning strategies for burn-train that train one model on many ranks, and what they report.

mod callback;
mod ddp;
mod epoch;
mod evaluate;
mod keeper;
mod rank_time;
mod run;
mod settings;
mod snapshot;
mod totals;

pub use callback::{Callback, Distributed, Join};
pub use ddp::DistributedDataParallel;
pub use keeper::{Checkpoints, Keeper, StopRequest};
pub use rank_time::RankTime;
pub use snapshot::{Position, Snapshot};

use burn::train::{InferenceStep, TrainStep};
use std::{sync::Arc, time::Duration};

/// What a model's training step takes.
pub type TrainInput<M> = <M as TrainStep>::Input;
/// What a model's training step gives.
pub type TrainedOutput<M> = <M as TrainStep>::Output;
/// What a model's evaluation step takes.
pub type ValidInput<M> = <M as InferenceStep>::Input;
/// What a model's evaluation step gives.
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
#[derive(Clone, Debug)]
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

/// Follows a run. Called on every rank with the same global values; all methods have defaults.
pub trait Observer: Send + Sync {
    /// An epoch begins, with this many optimizer steps and samples left in it.
    fn epoch_started(&self, _epoch: usize, _steps: usize, _samples: usize) {}
    /// An optimizer step is done.
    fn step_done(&self, _report: &StepReport) {}
    /// An evaluation begins, over this many samples of all ranks.
    fn evaluation_started(&self, _epoch: usize, _samples: usize) {}
    /// An epoch and its evaluation are done.
    fn epoch_done(&self, _report: &EpochReport) {}
    /// What a [`Callback`] or a metric given to
    /// [`with_metric`](DistributedDataParallel::with_metric) found in an epoch, over all ranks.
    fn found(&self, _epoch: usize, _name: &str, _value: &str) {}
    /// Something that the user may want to change.
    fn warned(&self, _message: &str) {}
}

/// Several observers, told in turn.
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
    fn found(&self, epoch: usize, name: &str, value: &str) {
        self.iter().for_each(|o| o.found(epoch, name, value));
    }
    fn warned(&self, message: &str) {
        self.iter().for_each(|o| o.warned(message));
    }
}
