//! Scalars of a run for TensorBoard and MLflow.
//!
//! Also a metric logger over them for a burn-train `Learner`.

use super::tables::{EvaluatedSet, StepRow};
use burn::train::{
    logger::{InMemoryMetricLogger, MetricLogger},
    metric::{
        MetricDefinition, MetricId, NumericEntry,
        store::{EpochSummary, MetricsUpdate, Split},
    },
};
use collective::strategy::{EpochReport, StepReport};
use std::collections::HashMap;

/// Final status of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Finished,
    Failed,
    /// Stopped by a signal.
    Killed,
}

/// A destination of scalars.
pub trait ScalarSink: Send {
    /// Writes a value at `step`. Errors are reported when the sink is dropped.
    fn scalar(&self, name: &str, step: usize, value: f64);
}

/// Writes the metrics of an optimizer step.
pub(super) fn log_step(sink: &impl ScalarSink, report: &StepReport) {
    let StepRow { loss, lr, samples_per_second, loss_scale, skipped, .. } = StepRow::of_step(report);
    let scalars = [
        ("loss", Some(loss)),
        ("lr", Some(lr)),
        ("samples_per_second", Some(samples_per_second)),
        ("loss_scale", loss_scale),
        ("skipped", skipped.map(f64::from)),
    ];
    let scalars = scalars.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let metrics = report.metrics.iter().map(|of| (of.metric.name.as_str(), of.value));
    for (name, value) in scalars.chain(metrics) {
        sink.scalar(&format!("train/{name}"), report.step, value);
    }
}

/// Writes the metrics of an evaluation of `set`, and the values of callbacks that are numbers.
pub(super) fn log_evaluation(sink: &impl ScalarSink, set: EvaluatedSet, report: &EpochReport) {
    for of in &report.metrics {
        sink.scalar(&format!("{}/{}", set.name(), of.metric.name), report.step, of.value);
    }
    for (name, number) in report.logged.iter().filter_map(|logged| Some((&logged.name, logged.number?))) {
        sink.scalar(name, report.step, number);
    }
}

/// Metric logger that writes the numeric metrics of a burn-train `Learner` to a sink.
///
/// Training metrics have one point per iteration (`train/Loss`) and one per epoch (`train_epoch/Loss`), validation
/// metrics one per epoch (`valid/Loss`). The step of a point is the number of training iterations before it.
pub struct MetricsLogger<S: ScalarSink> {
    sink: S,
    names: HashMap<MetricId, String>,
    /// Last value of each metric in the epoch.
    latest: HashMap<(Split, String), f64>,
    iterations: usize,
    /// burn-train reads values back for early stopping and checkpoint selection.
    values: InMemoryMetricLogger,
}

impl<S: ScalarSink> MetricsLogger<S> {
    pub(super) fn new(sink: S) -> Self {
        let (names, latest) = (HashMap::new(), HashMap::new());
        Self { sink, names, latest, iterations: 0, values: InMemoryMetricLogger::new() }
    }
}

impl<S: ScalarSink> MetricLogger for MetricsLogger<S> {
    fn log(&mut self, update: MetricsUpdate, epoch: usize, split: &Split) {
        let entries = || update.entries_numeric.iter();
        // At the end of an epoch, burn-train repeats every metric with its final value.
        let is_final = entries().any(|update| matches!(update.numeric_entry, Some(NumericEntry::Final(_))));
        let is_iteration = *split == Split::Train && !is_final;
        self.iterations += usize::from(is_iteration);
        for update in entries() {
            let Some(name) = self.names.get(&update.entry.metric_id) else { continue };
            let Some(value) = update.numeric_entry.as_ref().map(NumericEntry::current) else { continue };
            self.latest.insert((split.clone(), name.clone()), value);
            if is_iteration {
                self.sink.scalar(&format!("train/{name}"), self.iterations, value);
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
        for ((_, name), value) in self.latest.extract_if(|(split, _), _| *split == summary.split) {
            self.sink.scalar(&format!("{group}/{name}"), self.iterations, value);
        }
        self.values.log_epoch_summary(summary);
    }
}
