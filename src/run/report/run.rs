//! A run as its folder tells it, while it goes on, after its end, or after it was killed.

use crate::run::tables::{EpochRow, Mistake, RankRow, StepRow};
use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

/// What a page needs of a run.
pub struct Run {
    pub path: PathBuf,
    pub config: Map<String, Value>,
    pub steps: Vec<StepRow>,
    pub epochs: Vec<EpochRow>,
    /// Empty for a run of a version that did not measure it.
    pub ranks: Vec<RankRow>,
    /// For each label, how often each answer was given; empty before the first evaluation.
    pub confusion: Vec<Vec<u64>>,
    pub worst: Vec<Mistake>,
    /// Their picture, a PNG.
    pub picture: Option<Vec<u8>>,
    /// Of the run that ended with the last of `steps`.
    pub end: Option<End>,
}

/// A configuration without the flags that gave it.
fn decided(mut config: Map<String, Value>) -> Map<String, Value> {
    config.remove("flags");
    config
}

/// What `summary.json` knows and the tables do not.
#[derive(Clone, Debug, Deserialize)]
pub struct End {
    #[serde(default)]
    pub test_loss: Option<f64>,
    #[serde(default)]
    pub test_accuracy: Option<f64>,
    pub steps: usize,
    pub samples_per_second: f64,
    pub seconds: f64,
    pub transport: String,
}

impl Run {
    /// Reads the folder `path`.
    ///
    /// # Errors
    /// If it is no run's, or a file in it is damaged.
    pub fn read(path: &Path) -> Result<Self> {
        if !path.join("config.json").is_file() {
            bail!(
                "{} is no run's folder: there is no config.json in it; name a folder that training has left, such \
                 as one in runs/",
                path.display()
            );
        }
        let steps: Vec<StepRow> = table(&path.join("steps.csv"))?;
        let end: Option<End> = json(&path.join("summary.json"))?;
        let last = steps.last().map_or(0, |row| row.step);
        Ok(Self {
            path: path.into(),
            config: decided(json(&path.join("config.json"))?.unwrap_or_default()),
            epochs: table(&path.join("epochs.csv"))?,
            ranks: table(&path.join("ranks.csv"))?,
            confusion: confusion(&path.join("confusion_matrix.csv"))?,
            worst: table(&path.join("misclassified.csv"))?,
            picture: bytes(&path.join("misclassified.png"))?,
            end: end.filter(|end| end.steps == last),
            steps,
        })
    }

    /// The folder's name.
    pub fn name(&self) -> String {
        let whole = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        whole.file_name().map_or_else(|| whole.display().to_string(), |name| name.to_string_lossy().into())
    }

    /// One value of each step, by its number.
    pub fn by_step(&self, value: impl Fn(&StepRow) -> f64) -> Vec<(f64, f64)> {
        self.steps.iter().map(|row| (row.step as f64, value(row))).collect()
    }

    /// The set that is evaluated after every epoch.
    pub fn evaluated(&self) -> &'static str {
        let has_validation = self.epochs.iter().any(|row| row.valid_loss.is_some());
        if has_validation { "validation" } else { "test" }
    }

    /// One value of each evaluation, by the number of steps before it.
    pub fn by_evaluation(&self, value: impl Fn(&EpochRow) -> Option<f64>) -> Vec<(f64, f64)> {
        let steps = |epoch| self.steps.iter().rfind(|row| row.epoch == epoch).map(|row| row.step as f64);
        self.epochs.iter().filter_map(|row| Some((steps(row.epoch)?, value(row)?))).collect()
    }

    /// Training samples over all ranks, over the time of the training steps; `None` before the first.
    pub fn samples_per_second(&self) -> Option<f64> {
        let of_steps = || {
            let time: f64 = self.steps.iter().map(|row| 1.0 / row.samples_per_second).sum();
            (!self.steps.is_empty()).then(|| self.steps.len() as f64 / time)
        };
        self.end.as_ref().map(|end| end.samples_per_second).or_else(of_steps)
    }

    /// Seconds of the whole run if it has ended, or else of its epochs.
    pub fn seconds(&self) -> f64 {
        self.end.as_ref().map_or_else(|| self.epochs.iter().map(|row| row.seconds).sum(), |end| end.seconds)
    }

    /// A value of the configuration, as people read it.
    pub fn setting(&self, key: &str) -> String {
        self.config.get(key).map_or_else(String::new, show)
    }
}

/// A value of JSON without its quotes and brackets.
pub fn show(value: &Value) -> String {
    match value {
        Value::Null => "none".into(),
        Value::String(text) => text.clone(),
        Value::Array(values) => values.iter().map(show).collect::<Vec<_>>().join(", "),
        Value::Bool(_) | Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// The bytes of a file that need not be there.
fn bytes(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

fn json<T: DeserializeOwned>(path: &Path) -> Result<Option<T>> {
    let Some(bytes) = bytes(path)? else { return Ok(None) };
    let value = serde_json::from_slice(&bytes);
    value.map(Some).map_err(|error| damaged(path, error.line(), &error.to_string()))
}

/// The rows of a table; none if there is no such file. A last line that does not end is being
/// written, or was cut by a crash, and is none.
fn records(path: &Path) -> Result<(csv::ByteRecord, Vec<csv::ByteRecord>)> {
    let bytes = bytes(path)?.unwrap_or_default();
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
    let mut reader = csv::Reader::from_reader(&bytes[..whole]);
    let failed = |error: csv::Error| {
        let line = error.position().map_or(1, |position| position.line() as usize);
        damaged(path, line, "it has not as many columns as the first line, or is no text")
    };
    let header = reader.byte_headers().map_err(failed)?.clone();
    Ok((header, reader.byte_records().collect::<csv::Result<_>>().map_err(failed)?))
}

fn table<T: DeserializeOwned>(path: &Path) -> Result<Vec<T>> {
    let (header, rows) = records(path)?;
    let read = |row: &csv::ByteRecord| {
        row.deserialize(Some(&header)).map_err(|error| misread(path, &header, row, &error))
    };
    rows.iter().map(read).collect()
}

fn confusion(path: &Path) -> Result<Vec<Vec<u64>>> {
    let (header, rows) = records(path)?;
    let read = |row: &csv::ByteRecord| -> Result<Vec<u64>> {
        let counts = row.deserialize::<Vec<u64>>(None);
        let counts = counts.map_err(|error| misread(path, &header, row, &error))?;
        Ok(counts.into_iter().skip(1).collect())
    };
    rows.iter().map(read).collect()
}

/// A row that is not what its header says.
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
    anyhow!(
        "{}, line {line}: {reason}; repair the line, or move the file away to do without it",
        path.display()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_run_that_goes_on_is_read_as_far_as_it_is() {
        let folder = folder(&format!("{STEPS}3,1,1."));
        let run = Run::read(folder.path()).expect("a run");
        assert_eq!(run.by_step(|row| row.loss), [(1.0, 2.5), (2.0, 1.5)]);
        assert_eq!(run.by_evaluation(|row| row.test_accuracy), [(2.0, 0.75)]);
        // Equal batches: the time of both is 1/100 + 1/300 of a batch.
        assert!((run.samples_per_second().expect("steps") - 150.0).abs() < 1e-9);
        assert_eq!((run.setting("dropout"), run.setting("init_from")), ("0.25, 0.5".into(), "none".into()));
        assert!(run.ranks.is_empty() && run.confusion.is_empty() && run.worst.is_empty());
    }

    #[test]
    fn a_summary_counts_only_if_the_run_ended_with_it() {
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
    fn what_is_damaged_is_named_with_its_line() {
        assert!(error(Path::new("/nowhere")).contains("/nowhere is no run's folder"));
        for (steps, line, said) in [
            (format!("{STEPS}3,1,what,0.1,100\n"), 4, "`what` in column loss"),
            (format!("{STEPS}3,1\n"), 4, "columns"),
            ("step,epoch,lr,samples_per_second\n1,1,0.1,5\n".into(), 2, "missing field `loss`"),
        ] {
            let error = error(folder(&steps).path());
            assert!(error.contains(&format!("steps.csv, line {line}: ")), "{error}");
            assert!(error.contains(said), "{error} should say {said}");
        }
        let folder = folder(STEPS);
        fs::write(folder.path().join("config.json"), "{\n  \"seed\": }").expect("written");
        assert!(error(folder.path()).contains("config.json, line 2: "), "{}", error(folder.path()));
    }
}
