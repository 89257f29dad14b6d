//! Data of a running, finished or interrupted run, read from its folder.

use crate::{
    process::atomic_file,
    run::tables::{EpochRow, Mistake, RankRow, StepRow},
};
use anyhow::{Result, anyhow, bail};
use collective::metric::{Classification, MetricInfo, StepOutput};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

/// Data of a run for a report.
pub struct Run {
    pub path: PathBuf,
    pub config: Map<String, Value>,
    pub steps: Vec<StepRow>,
    pub epochs: Vec<EpochRow>,
    /// Metrics of the model, the loss first.
    pub metrics: Vec<MetricInfo>,
    /// Metrics of the training step, the loss first.
    pub train_metrics: Vec<MetricInfo>,
    /// Empty for a run of an older version without these measurements.
    pub ranks: Vec<RankRow>,
    /// Number of predictions by label and predicted class; empty before the first evaluation.
    pub confusion: Vec<Vec<u64>>,
    /// Worst misclassified images.
    pub worst: Vec<Mistake>,
    /// PNG of the images in `worst`.
    pub picture: Option<Vec<u8>>,
    /// Content of `summary.json`; empty unless it belongs to the last of `steps`.
    pub summary: Map<String, Value>,
}

impl Run {
    /// Reads the run folder `path`.
    ///
    /// # Errors
    /// If the folder is not a run, or a file in it is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.join("config.json").is_file() {
            bail!(
                "{} is not a run folder: there is no config.json in it; name a run folder, such as one in \
                 runs/",
                path.display()
            );
        }
        let steps: Vec<StepRow> = table(&path.join("steps.csv"))?;
        let summary: Option<Map<String, Value>> = json(&path.join("summary.json"))?;
        let last = steps.last().map_or(0, |row| row.step);
        let summary = summary.filter(|summary| summary.get("steps").is_some_and(|steps| *steps == last));
        let mut config: Map<String, Value> = json(&path.join("config.json"))?.unwrap_or_default();
        config.remove("flags");
        let confusion: Vec<Vec<u64>> = table(&path.join("confusion_matrix.csv"))?;
        let mut metrics = |name| config.remove(name).and_then(|value| serde_json::from_value(value).ok());
        let (metrics, train_metrics) = (metrics("metrics"), metrics("train_metrics"));
        Ok(Self {
            path: path.into(),
            config,
            epochs: table(&path.join("epochs.csv"))?,
            // Those of a classifier, for a run of an older version.
            metrics: metrics.unwrap_or_else(Classification::metrics),
            train_metrics: train_metrics.unwrap_or_else(|| vec![MetricInfo::loss()]),
            ranks: table(&path.join("ranks.csv"))?,
            // The first column is the label.
            confusion: confusion.into_iter().map(|row| row[1..].to_vec()).collect(),
            worst: table(&path.join("misclassified.csv"))?,
            picture: atomic_file::read(&path.join("misclassified.png"))?,
            summary: summary.unwrap_or_default(),
            steps,
        })
    }

    /// Name of the folder.
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into())
    }

    /// Returns a value of each step, with the step number.
    pub fn by_step(&self, value: impl Fn(&StepRow) -> f64) -> Vec<(f64, f64)> {
        self.steps.iter().map(|row| (row.step as f64, value(row))).collect()
    }

    /// The set that is evaluated after every epoch.
    pub fn evaluated(&self) -> &'static str {
        let has_validation = self.epochs.iter().any(|row| row.get("valid_loss").is_some());
        if has_validation { "validation" } else { "test" }
    }

    /// Returns a value of each evaluation, with the number of steps before it.
    pub fn by_evaluation(&self, value: impl Fn(&EpochRow) -> Option<f64>) -> Vec<(f64, f64)> {
        let steps =
            |epoch| self.steps.iter().rfind(|row| row.epoch as f64 == epoch).map(|row| row.step as f64);
        self.epochs.iter().filter_map(|row| Some((steps(row.get("epoch")?)?, value(row)?))).collect()
    }

    /// Metrics that are computed in training only.
    pub fn train_only(&self) -> impl Iterator<Item = &MetricInfo> {
        let is_evaluated = |metric: &&MetricInfo| self.metrics.iter().any(|known| known.name == metric.name);
        self.train_metrics.iter().skip(1).filter(move |metric| !is_evaluated(metric))
    }

    /// Last values of callbacks that are no metrics, by name.
    pub fn callbacks(&self) -> BTreeMap<String, String> {
        let is_metric = |column: &str| {
            let of = |set: &str, metrics: &[MetricInfo]| {
                let name = column.strip_prefix(set);
                name.is_some_and(|name| metrics.iter().any(|metric| metric.name == name))
            };
            of("test_", &self.metrics) || of("valid_", &self.metrics) || of("train_", &self.train_metrics)
        };
        let number = |number: f64| format!("{number:.4}");
        let columns = self
            .epochs
            .iter()
            .flat_map(|row| &row.0)
            .filter(|(column, _)| !["epoch", "seconds"].contains(&column.as_str()) && !is_metric(column));
        let of_epochs = columns.filter_map(|(column, value)| Some((column.clone(), number((*value)?))));
        let end = self.summary.get("callbacks").and_then(Value::as_object).into_iter().flatten();
        let text = |value: &Value| value.as_f64().map_or_else(|| show(value), number);
        of_epochs.chain(end.map(|(name, value)| (name.clone(), text(value)))).collect()
    }

    /// Training samples of all ranks per second of training steps; `None` before the first step.
    pub fn samples_per_second(&self) -> Option<f64> {
        let of_steps = || {
            let time: f64 = self.steps.iter().map(|row| 1.0 / row.samples_per_second).sum();
            (!self.steps.is_empty()).then(|| self.steps.len() as f64 / time)
        };
        self.result("samples_per_second").or_else(of_steps)
    }

    /// Duration in seconds: of the whole run if it has finished, otherwise of its epochs.
    pub fn seconds(&self) -> f64 {
        let of_epochs = || self.epochs.iter().filter_map(|row| row.get("seconds")).sum();
        self.result("seconds").unwrap_or_else(of_epochs)
    }

    /// A number of the summary, if the run has finished.
    pub fn result(&self, name: &str) -> Option<f64> {
        self.summary.get(name)?.as_f64()
    }

    /// Formats a value of the configuration.
    pub fn setting(&self, key: &str) -> String {
        self.config.get(key).map_or_else(String::new, show)
    }
}

/// Formats a JSON value without quotes and brackets.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(show).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(bytes) = atomic_file::read(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| damaged(path, error.line(), &error.to_string()))
}

/// Reads the rows of a table; empty if the file does not exist.
///
/// A last line without a line end is ignored: it is being written or was truncated by a crash.
fn table<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let bytes = atomic_file::read(path)?.unwrap_or_default();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut reader = csv::Reader::from_reader(&bytes[..whole]);
    let failed = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        damaged(path, line, "the number of columns differs from the first line, or it is not text")
    };
    let header = reader.byte_headers().map_err(failed)?.clone();
    let read = |row: csv::Result<csv::ByteRecord>| {
        let row = row.map_err(failed)?;
        row.deserialize(Some(&header)).map_err(|error| misread(path, &header, &row, &error))
    };
    reader.byte_records().map(read).collect()
}

/// Error of a row that cannot be deserialised, naming cell and column.
fn misread(
    path: &Path,
    header: &csv::ByteRecord,
    row: &csv::ByteRecord,
    error: &csv::Error,
) -> anyhow::Error {
    let line = row.position().map_or(1, |position| position.line() as usize);
    let (field, reason) = match error.kind() {
        csv::ErrorKind::Deserialize { err, .. } => (err.field(), err.kind().to_string()),
        _ => (None, error.to_string()),
    };
    let cell = field.and_then(|field| Some((row.get(field as usize)?, header.get(field as usize)?)));
    let place = cell.map_or_else(String::new, |(cell, column)| {
        format!("`{}` in column {}: ", String::from_utf8_lossy(cell), String::from_utf8_lossy(column))
    });
    damaged(path, line, &format!("{place}{reason}"))
}

fn damaged(path: &Path, line: usize, reason: &str) -> anyhow::Error {
    // A folder without this file is not a run's.
    let or_else = if path.ends_with("config.json") { "" } else { ", or remove the file to ignore it" };
    anyhow!("{}, line {line}: {reason}; repair the line{or_else}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const STEPS: &str = "step,epoch,loss,lr,samples_per_second\n1,1,2.5,0.1,100\n2,1,1.5,0.1,300\n";

    fn folder(steps: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("written");
        write("config.json", "{\"seed\": 42, \"dropout\": [0.25, 0.5], \"init_from\": null}");
        write("steps.csv", steps);
        write("epochs.csv", "epoch,train_loss,test_loss,test_accuracy,seconds\n1,2,1.25,0.75,3\n");
        folder
    }

    fn error(folder: &Path) -> String {
        Run::read(folder).err().map_or_else(String::new, |error| format!("{error:#}"))
    }

    #[test]
    fn a_running_run_is_read_up_to_its_last_complete_row() {
        let folder = folder(&format!("{STEPS}3,1,1."));
        let run = Run::read(folder.path()).expect("a run");
        assert_eq!(run.by_step(|row| row.loss), [(1.0, 2.5), (2.0, 1.5)]);
        assert_eq!(run.by_evaluation(|row| row.get("test_accuracy")), [(2.0, 0.75)]);
        // Equal batches: the time of both is 1/100 + 1/300 of a batch.
        assert!((run.samples_per_second().expect("steps") - 150.0).abs() < 1e-9);
        assert_eq!((run.setting("dropout"), run.setting("init_from")), ("0.25, 0.5".into(), "none".into()));
        assert!(run.ranks.is_empty() && run.confusion.is_empty() && run.worst.is_empty());
    }

    #[test]
    fn a_summary_is_ignored_if_the_run_was_resumed_later() {
        let folder = folder(STEPS);
        let summary = |steps| {
            let text = format!(
                "{{\"steps\": {steps}, \"samples_per_second\": 7.5, \"seconds\": 9.0, \"transport\": \"shm\"}}"
            );
            fs::write(folder.path().join("summary.json"), text).expect("written");
            Run::read(folder.path()).expect("a run").samples_per_second()
        };
        assert_eq!(summary(2), Some(7.5));
        assert_ne!(summary(1), Some(7.5), "it was resumed since");
    }

    #[test]
    fn damage_is_reported_with_file_and_line() {
        assert!(error(Path::new("/nowhere")).contains("/nowhere is not a run folder"));
        for (steps, line, part) in [
            (format!("{STEPS}3,1,what,0.1,100\n"), 4, "`what` in column loss"),
            (format!("{STEPS}3,1\n"), 4, "columns"),
            ("step,epoch,lr,samples_per_second\n1,1,0.1,5\n".into(), 2, "missing field `loss`"),
        ] {
            let error = error(folder(&steps).path());
            assert!(error.contains(&format!("steps.csv, line {line}: ")), "{error}");
            assert!(error.contains(part), "{error} should contain {part}");
        }
        let folder = folder(STEPS);
        fs::write(folder.path().join("config.json"), "{\n  \"seed\": }").expect("written");
        let error = error(folder.path());
        assert!(error.contains("config.json, line 2: ") && error.ends_with("; repair the line"), "{error}");
    }
}
