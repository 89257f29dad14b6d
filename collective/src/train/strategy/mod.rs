//! Strategies for burn-train that train one model on several ranks or devices, and their reports.

mod callback;
mod checkpoints;
mod compute;
mod epoch;
mod evaluate;
mod live_recovery;
mod local_round;
mod noop_renderer;
mod parallel;
mod run;
mod settings;
mod snapshot;
mod stragglers;
mod weight_average;

pub use callback::{Callback, Distributed, Join, MetricCallback, RunControl};
pub use checkpoints::{CheckpointSink, Checkpoints, StopRequest};
use compute::ComputeBatch;
pub use live_recovery::{LiveRecovery, LiveState, Report};
pub use noop_renderer::NoopRenderer;
pub use parallel::{DdpStrategy, DpStrategy, ParallelStrategy};
pub use snapshot::{Position, Snapshot};

use crate::train::metric::{MetricInfo, MetricValue, StepOutput};
use burn::train::{InferenceStep, LearnerModel, TrainStep};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Input of a model's training step.
pub type TrainInput<M> = <M as TrainStep>::Input;
/// Output of a model's training step.
pub type TrainedOutput<M> = <M as TrainStep>::Output;
/// Input of a model's evaluation step.
pub type ValidInput<M> = <M as InferenceStep>::Input;
/// Output of a model's evaluation step.
pub type ValidOutput<M> = <M as InferenceStep>::Output;

/// A model whose outputs are summed over ranks.
pub trait StepModel:
    LearnerModel + TrainStep<Output: StepOutput> + InferenceStep<Output: StepOutput>
{
}

impl<M> StepModel for M where
    M: LearnerModel + TrainStep<Output: StepOutput> + InferenceStep<Output: StepOutput>
{
}

/// Report of one optimizer step over all ranks. With local SGD, its loss and metrics are those of this rank.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct StepReport {
    /// Step number, from 1 over the whole run.
    pub step: usize,
    /// Epoch, from 1.
    pub epoch: usize,
    /// Mean loss over the samples of the global batch.
    #[serde(deserialize_with = "crate::train::metric::number_or_nan")]
    pub loss: f64,
    /// Means of the training output's other metrics over the samples of the global batch.
    pub metrics: Vec<MetricValue>,
    /// Learning rate.
    pub lr: f64,
    /// Number of samples of this step over all ranks.
    pub samples: usize,
    /// Time from the end of the previous step to the end of this one.
    pub elapsed: Duration,
    /// Factor by which this step's loss was scaled; `None` except for f16.
    pub loss_scale: Option<f32>,
    /// Whether the optimizer skipped this step because gradients overflowed f16.
    pub skipped: bool,
}

/// Report of one epoch over all ranks.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EpochReport {
    /// Epoch, from 1.
    pub epoch: usize,
    /// Number of optimizer steps of the whole run so far.
    pub step: usize,
    /// Means of the training output's metrics over all samples of this epoch. The first is the loss.
    pub train: Vec<MetricValue>,
    /// Number of training samples over all ranks.
    pub train_samples: usize,
    /// Metrics of the evaluation, as [`StepOutput::metrics`](crate::train::metric::StepOutput::metrics) lists them, followed by
    /// those of callbacks.
    pub metrics: Vec<MetricValue>,
    /// Number of samples of the evaluation set.
    pub valid_samples: usize,
    /// Other values of callbacks, and of metrics of [`with_metric`](ParallelStrategy::with_metric), over all ranks, and the
    /// utilisation of [`with_peak_throughput`](ParallelStrategy::with_peak_throughput).
    pub logged: Vec<LoggedValue>,
    /// Training time without evaluation, including the part of the epoch before a resume.
    pub train_time: Duration,
    /// Time of training and evaluation.
    pub elapsed: Duration,
    /// Digest of all parameters and buffers, which is verified to be equal on all ranks.
    pub digest: String,
    /// Breakdown of each rank's training time.
    pub ranks: Vec<RankTime>,
    /// Number of steps that the optimizer skipped because gradients overflowed f16.
    pub skipped_steps: usize,
    /// Factor by which the next step's loss is scaled; `None` except for f16.
    pub loss_scale: Option<f32>,
}

impl EpochReport {
    /// Mean training loss over all samples of this epoch.
    pub fn train_loss(&self) -> f64 {
        self.train.first().map_or(f64::NAN, |loss| loss.value)
    }

    /// Value of a metric of the evaluation.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|value| value.metric.name == name).map(|value| value.value)
    }
}

/// Value of a [`Callback`] for an evaluation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LoggedValue {
    /// Name for consoles, tables and charts, such as `top-5 accuracy`.
    pub name: String,
    /// Value for the console.
    pub text: String,
    /// Value for tables and charts; `None` if it is not a number.
    pub number: Option<f64>,
}

impl LoggedValue {
    /// A number.
    pub fn number(name: impl Into<String>, value: f64) -> Self {
        Self { name: name.into(), text: format!("{value:.4}"), number: Some(value) }
    }

    /// A fraction from 0 to 1, which the console shows in percent.
    pub fn percent(name: impl Into<String>, value: f64) -> Self {
        let metric = MetricInfo::new(name).percent();
        Self { text: metric.text(value), name: metric.name, number: Some(value) }
    }

    /// A value that is not a number, such as a path.
    pub fn text(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self { name: name.into(), text: text.into(), number: None }
    }
}

/// Breakdown of one rank's training time in one epoch.
///
/// After a resume in the middle of an epoch, it covers only the time since then. The rest of
/// [`training`](Self::training) is computation: forward, backward, optimizer, and communication that overlaps with
/// backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTime {
    /// Time of all steps, without evaluation.
    pub training: Duration,
    /// Time spent waiting for the next batch.
    pub data: Duration,
    /// Time spent waiting for the gradients of all ranks after backward, and for their parameters with local SGD.
    ///
    /// If gradients stay in device memory, devices wait instead of hosts. The value is then the host's part only.
    pub gradients: Duration,
}

/// Observes a run. Called on every rank with the same global values; all methods have defaults.
pub trait Observer: Send + Sync {
    /// Called when an epoch begins, with its remaining numbers of optimizer steps and samples.
    fn epoch_started(&self, _epoch: usize, _steps: usize, _samples: usize) {}
    /// Called after an optimizer step.
    fn step_done(&self, _report: &StepReport) {}
    /// Called when an evaluation begins, with its number of samples over all ranks.
    fn evaluation_started(&self, _epoch: usize, _samples: usize) {}
    /// Called after an epoch and its evaluation.
    fn epoch_done(&self, _report: &EpochReport) {}
    /// Called after the evaluation of the test set of [`with_test`](ParallelStrategy::with_test).
    ///
    /// The report is that of the last epoch, with the totals of the test set and the values of callbacks.
    fn tested(&self, _report: &EpochReport) {}
    /// Called with a warning for the user.
    fn warned(&self, _message: &str) {}
    /// Called with a note for the user, such as the reason why a callback ends the run.
    fn noted(&self, _message: &str) {}
}
