//! TensorBoard metric logger for burn-train.

use super::EventLog;
use crate::{process::console::Console, run::EvaluatedSet};
use anyhow::Result;
use burn::train::{
    logger::{InMemoryMetricLogger, MetricLogger},
    metric::{
        MetricDefinition, MetricId, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
};
use std::{collections::HashMap, path::Path};

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
    names: HashMap<MetricId, String>,
    /// Last value of each metric in the epoch.
    latest: HashMap<(Split, String), f64>,
    iterations: usize,
    /// burn-train reads values back for early stopping and checkpoint selection.
    values: InMemoryMetricLogger,
}

impl TensorBoardLogger {
    /// Creates an event file in the folder `tensorboard` of `folder`.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(folder: &Path) -> Result<Self> {
        Ok(Self {
            events: EventLog::create(folder, 0, EvaluatedSet::Valid)?,
            names: HashMap::new(),
            latest: HashMap::new(),
            iterations: 0,
            values: InMemoryMetricLogger::new(),
        })
    }
}

impl MetricLogger for TensorBoardLogger {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let entries = || update.entries_numeric.iter();
        // At the end of an epoch, burn-train repeats every metric with its final value.
        let is_final = entries().any(|update| matches!(update.numeric_entry, Some(NumericEntry::Final(_))));
        if *split == Split::Train && !is_final {
            self.iterations += 1;
        }
        for update in entries() {
            let Some(name) = self.names.get(&update.entry.metric_id) else { continue };
            let Some(value) = update.numeric_entry.as_ref().map(NumericEntry::current) else { continue };
            self.latest.insert((split.clone(), name.clone()), value);
            if *split == Split::Train && !is_final {
                self.events.scalar(format!("train/{name}"), self.iterations, value);
            }
        }
        self.values.log(update, epoch, split);
    }

    fn read_numeric(&mut self, name: &str, epoch: usize, split: &Split) -> Result<Vec<NumericEntry>, String> {
        self.values.read_numeric(name, epoch, split)
    }

    fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id.clone(), definition.name.to_string());
        self.values.log_metric_definition(definition);
    }

    fn log_epoch_summary(&mut self, summary: EpochSummary) {
        let group = match summary.split {
            Split::Train => "train_epoch",
            Split::Valid => "valid",
            Split::Test(_) => "test",
        };
        for ((split, name), value) in &self.latest {
            if *split == summary.split {
                self.events.scalar(format!("{group}/{name}"), self.iterations, *value);
            }
        }
        self.latest.retain(|(split, _), _| *split != summary.split);
        self.values.log_epoch_summary(summary);
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
