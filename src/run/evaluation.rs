//! Results of steps and evaluations.

use super::tables::StepRow;
use crate::config::Config;
use collective::strategy::{EpochReport, StepReport};
use std::{borrow::Cow, collections::BTreeMap};

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

/// Metrics of an evaluation, by name.
///
/// `None` is a value that is not finite, for which JSON has no number.
pub type Evaluation = BTreeMap<String, Option<f64>>;

/// The metrics of an epoch's report.
pub(super) fn evaluation(report: &EpochReport) -> Evaluation {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    report.metrics.iter().map(|of| (of.metric.name.clone(), finite(of.value))).collect()
}

/// Names and values of an optimizer step, for trackers.
pub(super) fn step_scalars(report: &StepReport) -> impl Iterator<Item = (Cow<'static, str>, f64)> {
    let StepRow { loss, lr, samples_per_second, loss_scale, skipped, .. } = StepRow::of_step(report);
    let scalars = [
        ("train/loss", Some(loss)),
        ("train/lr", Some(lr)),
        ("train/samples_per_second", Some(samples_per_second)),
        ("train/loss_scale", loss_scale),
        ("train/skipped", skipped.map(f64::from)),
    ];
    scalars
        .into_iter()
        .filter_map(|(name, value)| Some((Cow::from(name), value?)))
        .chain(report.metrics.iter().map(|of| (format!("train/{}", of.metric.name).into(), of.value)))
}

/// Names and values of an evaluation, for trackers: metrics, and values of callbacks that are numbers.
pub(super) fn evaluation_scalars(
    set: EvaluatedSet,
    report: &EpochReport,
) -> impl Iterator<Item = (String, f64)> {
    let metrics =
        report.metrics.iter().map(move |of| (format!("{}/{}", set.name(), of.metric.name), of.value));
    metrics.chain(report.logged.iter().filter_map(|logged| Some((logged.name.clone(), logged.number?))))
}
