//! CSV tables of a run: types of their rows, evaluated set, and the table of epochs.

use crate::{config::Config, process::atomic_file};
use anyhow::{Context, Result};
use collective::{
    metric::{MetricInfo, MetricValue},
    strategy::{EpochReport, StepReport},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, path::Path};

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

/// Columns of `steps.csv`, before the metrics of the training step.
pub(super) const STEP_COLUMNS: [&str; 7] =
    ["step", "epoch", "loss", "lr", "samples_per_second", "loss_scale", "skipped"];

/// A row of `steps.csv`, without the metrics of the training step besides the loss.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct StepRow {
    pub step: usize,
    pub epoch: usize,
    /// Mean over the samples of all ranks.
    pub loss: f64,
    pub lr: f64,
    pub samples_per_second: f64,
    /// Loss scale; only with f16.
    #[serde(default)]
    pub loss_scale: Option<f64>,
    /// 1 if the step was skipped because gradients overflowed, otherwise 0; only with f16.
    #[serde(default)]
    pub skipped: Option<u8>,
}

impl StepRow {
    /// The row of a step.
    pub(super) fn of_step(report: &StepReport) -> Self {
        let &StepReport { step, epoch, loss, lr, samples, elapsed, loss_scale, skipped, .. } = report;
        Self {
            step,
            epoch,
            loss,
            lr,
            samples_per_second: samples as f64 / elapsed.as_secs_f64().max(1e-9),
            loss_scale: loss_scale.map(f64::from),
            skipped: loss_scale.map(|_| u8::from(skipped)),
        }
    }
}

/// A row of `epochs.csv`: its numbers by column.
///
/// The columns are `epoch`, each metric of the training step as `train_METRIC`, each metric of an evaluation as
/// `test_METRIC` and `valid_METRIC`, one of which is empty, `seconds`, and the other values of callbacks by their names.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(transparent)]
pub struct EpochRow(pub BTreeMap<String, Option<f64>>);

impl EpochRow {
    /// Value in a column; `None` if the cell is empty.
    pub fn get(&self, column: &str) -> Option<f64> {
        self.0.get(column).copied().flatten()
    }

    /// Mean of a metric over the training samples of the epoch.
    pub fn train(&self, metric: &MetricInfo) -> Option<f64> {
        self.get(&format!("train_{}", metric.name))
    }

    /// Value of a metric in the evaluation of the epoch.
    pub fn metric(&self, metric: &MetricInfo) -> Option<f64> {
        ["valid", "test"].iter().find_map(|set| self.get(&format!("{set}_{}", metric.name)))
    }
}

/// A row of `ranks.csv`: training time of one rank in one epoch.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct RankRow {
    pub epoch: usize,
    pub rank: usize,
    pub seconds: f64,
    pub data_wait_seconds: f64,
    pub gradient_wait_seconds: f64,
}

impl RankRow {
    /// The rows of an epoch, one per rank.
    pub(super) fn of_epoch(report: &EpochReport) -> impl Iterator<Item = Self> {
        report.ranks.iter().enumerate().map(|(rank, time)| Self {
            epoch: report.epoch,
            rank,
            seconds: time.training.as_secs_f64(),
            data_wait_seconds: time.data.as_secs_f64(),
            gradient_wait_seconds: time.gradients.as_secs_f64(),
        })
    }
}

/// A row of `misclassified.csv`: a misclassified test image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mistake {
    /// Index in the test set.
    pub test_image: usize,
    pub label: usize,
    /// Predicted class.
    pub answer: usize,
    /// Predicted probability of the label, 0 to 1.
    pub label_probability: f64,
    /// Predicted probability of the predicted class, 0 to 1.
    pub answer_probability: f64,
}

/// Number of columns of `misclassified.png`.
///
/// It shows the images of `misclassified.csv` in order, each with a frame of 1/30 of its side.
pub const MISTAKE_COLUMNS: usize = 6;

/// Writes a whole table.
pub(crate) fn write<H: AsRef<[u8]>>(
    path: &Path,
    header: impl IntoIterator<Item = H>,
    rows: impl IntoIterator<Item = impl Serialize>,
) -> Result<()> {
    let mut table = csv::WriterBuilder::new().has_headers(false).from_writer(Vec::new());
    table.write_record(header)?;
    rows.into_iter().try_for_each(|row| table.serialize(row))?;
    atomic_file::write(path, &table.into_inner()?)
}

/// Adds the row of an epoch to the table at `path`, which may be empty. `set` is the set that was evaluated.
///
/// The table is rewritten, because its columns depend on the values that callbacks log.
pub(super) fn add_epoch(path: &Path, set: EvaluatedSet, report: &EpochReport) -> Result<()> {
    let mut row = vec![("epoch".to_owned(), report.epoch.to_string())];
    let column = |set: &str, of: &MetricValue| format!("{set}_{}", of.metric.name);
    row.extend(report.train.iter().map(|of| (column("train", of), of.value.to_string())));
    for each in [EvaluatedSet::Test, EvaluatedSet::Valid] {
        let cell = |value: f64| if each == set { value.to_string() } else { String::new() };
        row.extend(report.metrics.iter().map(|of| (column(each.name(), of), cell(of.value))));
    }
    row.push(("seconds".into(), report.elapsed.as_secs_f64().to_string()));
    for (name, number) in report.logged.iter().filter_map(|logged| Some((&logged.name, logged.number?))) {
        let is_taken = row.iter().any(|(column, _)| column == name);
        row.push((if is_taken { format!("callback_{name}") } else { name.clone() }, number.to_string()));
    }
    let failed = || format!("cannot read {}", path.display());
    let mut table = csv::ReaderBuilder::new().flexible(true).from_path(path).with_context(failed)?;
    let mut header = table.headers().with_context(failed)?.clone();
    for (column, _) in &row {
        if !header.iter().any(|known| known == column) {
            header.push_field(column);
        }
    }
    let cell = |column: &str| row.iter().find(|cell| cell.0 == column).map_or("", |cell| cell.1.as_str());
    let mut rows = table.records().collect::<csv::Result<Vec<_>>>().with_context(failed)?;
    rows.push(header.iter().map(cell).collect());
    // Rows of earlier epochs may have fewer columns, and those of a damaged file more.
    for row in &mut rows {
        row.truncate(header.len());
        (row.len()..header.len()).for_each(|_| row.push_field(""));
    }
    write(path, &header, rows.iter().map(|row| row.iter().collect::<Vec<_>>()))
}
