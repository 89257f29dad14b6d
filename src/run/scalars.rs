//! Names and values of a run's scalars, common to TensorBoard and MLflow.

use super::evaluation::EvaluatedSet;
use collective::strategy::{EpochReport, StepReport};

/// Returns the scalars of an optimizer step.
pub(super) fn step_scalars(report: &StepReport) -> impl Iterator<Item = (&'static str, f64)> {
    let samples_per_second = report.samples as f64 / report.elapsed.as_secs_f64().max(1e-9);
    let skipped = f64::from(u8::from(report.skipped));
    let scale =
        report.loss_scale.map(|scale| [("train/loss_scale", scale.into()), ("train/skipped", skipped)]);
    [("train/loss", report.loss), ("train/lr", report.lr), ("train/samples_per_second", samples_per_second)]
        .into_iter()
        .chain(scale.into_iter().flatten())
}

/// Returns the scalars of an evaluation: metrics, and values of callbacks that are numbers.
pub(super) fn evaluation_scalars(
    set: EvaluatedSet,
    report: &EpochReport,
) -> impl Iterator<Item = (String, f64)> {
    let metrics =
        report.means().map(move |(metric, value)| (format!("{}/{}", set.name(), metric.name), value));
    metrics.chain(report.logged.iter().filter_map(|logged| Some((logged.name.clone(), logged.number?))))
}
