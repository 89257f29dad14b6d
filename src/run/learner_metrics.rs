//! Scalars of a burn-train `Learner`, common to the metric loggers.

use burn::train::{
    logger::{InMemoryMetricLogger, MetricLogger},
    metric::{
        MetricDefinition, MetricId, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
};
use std::collections::HashMap;

/// Converts the updates of a burn-train `Learner` to scalars, and stores its metrics.
///
/// `write` gets name, step and value of a scalar. The step is the number of training iterations before it.
pub(super) struct LearnerMetrics {
    names: HashMap<MetricId, String>,
    /// Last value of each metric in the epoch.
    latest: HashMap<(Split, String), f64>,
    iterations: usize,
    /// burn-train reads values back for early stopping and checkpoint selection.
    values: InMemoryMetricLogger,
}

impl LearnerMetrics {
    pub fn new() -> Self {
        Self {
            names: HashMap::new(),
            latest: HashMap::new(),
            iterations: 0,
            values: InMemoryMetricLogger::new(),
        }
    }

    pub fn log(
        &mut self,
        update: MetricsUpdate,
        epoch: usize,
        split: &Split,
        mut write: impl FnMut(String, usize, f64),
    ) {
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
                write(format!("train/{name}"), self.iterations, value);
            }
        }
        self.values.log(update, epoch, split);
    }

    pub fn read_numeric(
        &mut self,
        name: &str,
        epoch: usize,
        split: &Split,
    ) -> Result<Vec<NumericEntry>, String> {
        self.values.read_numeric(name, epoch, split)
    }

    pub fn log_metric_definition(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id.clone(), definition.name.to_string());
        self.values.log_metric_definition(definition);
    }

    pub fn log_epoch_summary(&mut self, summary: EpochSummary, mut write: impl FnMut(String, usize, f64)) {
        let group = match summary.split {
            Split::Train => "train_epoch",
            Split::Valid => "valid",
            Split::Test(_) => "test",
        };
        for ((split, name), value) in &self.latest {
            if *split == summary.split {
                write(format!("{group}/{name}"), self.iterations, *value);
            }
        }
        self.latest.retain(|(split, _), _| *split != summary.split);
        self.values.log_epoch_summary(summary);
    }
}
