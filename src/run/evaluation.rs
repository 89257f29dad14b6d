//! Results of steps and evaluations.

use crate::config::Config;
use collective::{
    metric::MetricInfo,
    strategy::{EpochReport, StepReport},
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
    pub fn from_config(config: &Config) -> Self {
        if config.program.valid_samples > 0 { EvaluatedSet::Valid } else { EvaluatedSet::Test }
    }

    /// `test` or `valid`.
    pub fn name(self) -> &'static str {
        match self {
            EvaluatedSet::Test => "test",
            EvaluatedSet::Valid => "valid",
        }
    }
}

/// Means over the samples of an evaluation, by the name of the metric.
///
/// `None` is a value that is not finite, for which JSON has no number.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Evaluation(pub BTreeMap<String, Option<f64>>);

impl Evaluation {
    /// Computes the means of an epoch's report.
    pub fn from_report(report: &EpochReport) -> Self {
        let finite = |value: f64| Some(value).filter(|value| value.is_finite());
        Self(report.means().map(|(metric, value)| (metric.name.clone(), finite(value))).collect())
    }

    /// Value of a metric, if it is finite.
    pub fn get(&self, metric: &MetricInfo) -> Option<f64> {
        self.0.get(&metric.name).copied().flatten()
    }

    /// Whether this evaluation is better than `old` in a metric. A finite value is better than one that is not.
    pub fn is_better(&self, old: &Self, metric: &MetricInfo) -> bool {
        match (self.get(metric), old.get(metric)) {
            (Some(new), Some(old)) if metric.higher_is_better => new > old,
            (Some(new), Some(old)) => new < old,
            (new, _) => new.is_some(),
        }
    }
}

/// Names and values of an optimizer step, for trackers.
pub(super) fn step_scalars(report: &StepReport) -> impl Iterator<Item = (&'static str, f64)> {
    let samples_per_second = report.samples as f64 / report.elapsed.as_secs_f64().max(1e-9);
    let skipped = f64::from(u8::from(report.skipped));
    let scale =
        report.loss_scale.map(|scale| [("train/loss_scale", scale.into()), ("train/skipped", skipped)]);
    [("train/loss", report.loss), ("train/lr", report.lr), ("train/samples_per_second", samples_per_second)]
        .into_iter()
        .chain(scale.into_iter().flatten())
}

/// Names and values of an evaluation, for trackers: metrics, and values of callbacks that are numbers.
pub(super) fn evaluation_scalars(
    set: EvaluatedSet,
    report: &EpochReport,
) -> impl Iterator<Item = (String, f64)> {
    let metrics =
        report.means().map(move |(metric, value)| (format!("{}/{}", set.name(), metric.name), value));
    metrics.chain(report.logged.iter().filter_map(|logged| Some((logged.name.clone(), logged.number?))))
}
