//! TensorBoard metric logger for burn-train.

use super::EventLog;
use crate::{
    process::console::Console,
    run::{EvaluatedSet, learner_metrics::LearnerMetrics},
};
use anyhow::Result;
use burn::train::{
    logger::MetricLogger,
    metric::{
        MetricDefinition, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
};
use std::path::Path;

/// Writes the numeric metrics of a burn-train `Learner` to TensorBoard event files.
///
/// Training metrics have one point per iteration (`train/Loss`) and one per epoch (`train_epoch/Loss`), validation
/// metrics one per epoch (`valid/Loss`). The step of a point is the number of training iterations before it.
///
/// [`Trainer`](crate::Trainer) writes its events as an [`Observer`](collective::strategy::Observer) instead: a
/// `MetricLogger` gets neither the learning rate nor the step of a resumed run.
///
/// ```no_run
/// # use burn_ddp::run::tensorboard::TensorBoardLogger;
/// # fn configure<M: burn::train::LearnerModel + 'static>(
/// #     training: burn::train::SupervisedTraining<M>,
/// # ) -> anyhow::Result<burn::train::SupervisedTraining<M>> {
/// let training = training.with_metric_logger(TensorBoardLogger::create("runs/mine".as_ref())?);
/// # Ok(training)
/// # }
/// ```
pub struct TensorBoardLogger {
    events: EventLog,
    metrics: LearnerMetrics,
}

impl TensorBoardLogger {
    /// Creates an event file in the folder `tensorboard` of `folder`.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(folder: &Path) -> Result<Self> {
        let events = EventLog::create(folder, 0, EvaluatedSet::Valid)?;
        Ok(Self { events, metrics: LearnerMetrics::new() })
    }
}

impl MetricLogger for TensorBoardLogger {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        self.metrics.log(update, epoch, split, |tag, step, value| self.events.scalar(tag, step, value));
    }

    fn read_numeric(&mut self, name: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        self.metrics.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.metrics.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        self.metrics.log_epoch_summary(summary, |tag, step, value| self.events.scalar(tag, step, value));
    }
}

impl Drop for TensorBoardLogger {
    fn drop(&mut self) {
        // The trait has no way to return an error.
        if let Err(error) = self.events.flush() {
            Console::new(true).warn(&format!("{error:#}"));
        }
    }
}
