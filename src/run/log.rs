//! Metrics of a run: `steps.csv`, `epochs.csv`, `ranks.csv` and the progress that checkpoints store.

use super::tables::{EvaluatedSet, RankRow, STEP_COLUMNS, StepRow, add_epoch};
use crate::{
    config::Monitor,
    process::{atomic_file, lock},
};
use anyhow::{Context, Result};
use collective::{
    metric::MetricInfo,
    strategy::{EpochReport, LoggedValue, Observer, StepReport},
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::{
    collections::BTreeMap,
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};

/// Observer that writes the tables of a run and tracks its progress.
pub struct RunLog {
    monitor: Monitor,
    set: EvaluatedSet,
    state: Mutex<(Tables, Progress)>,
}

struct Tables {
    steps: csv::Writer<File>,
    epochs: PathBuf,
    ranks: csv::Writer<File>,
    failure: Option<anyhow::Error>,
}

/// Metrics of an evaluation, by name.
///
/// `None` is a value that is not finite, for which JSON has no number.
pub type Evaluation = BTreeMap<String, Option<f64>>;

/// Progress of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    pub epoch: usize,
    pub step: usize,
    pub samples: usize,
    /// Total duration of the training steps.
    pub training: Duration,
    /// Last evaluation.
    pub evaluation: Evaluation,
    /// Evaluation of the test set at the end of a run with `--valid-split`.
    #[serde(skip)]
    pub tested: Option<Evaluation>,
    /// Last values of callbacks, by name: numbers or text.
    #[serde(default)]
    pub callbacks: Map<String, Value>,
    pub digest: String,
    /// Wall time of earlier processes of a resumed run.
    pub seconds: f64,
    pub best: Option<Best>,
}

/// Best evaluation so far.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Optimizer step of the evaluation.
    pub step: usize,
    /// Epoch of the evaluation.
    #[serde(default)]
    pub epoch: usize,
    /// Value of the monitored metric, if it is finite.
    #[serde(default)]
    pub value: Option<f64>,
    /// Epochs since the evaluation.
    pub ago: usize,
}

impl Tables {
    /// Runs `write` unless a write has failed before, and stores its error.
    fn try_write(&mut self, write: impl FnOnce(&mut Self) -> Result<()>) {
        if self.failure.is_none() {
            self.failure = write(self).err();
        }
    }
}

impl RunLog {
    /// Opens the tables in `folder`: new ones, or those of a run that is resumed with progress, step and epoch.
    ///
    /// Rows of later steps and epochs are removed. `trained` are the metrics of the training step.
    pub fn open(
        folder: &Path,
        trained: &[MetricInfo],
        monitor: Monitor,
        set: EvaluatedSet,
        resumed: Option<(Progress, usize, usize)>,
    ) -> Result<Self> {
        let last = resumed.as_ref().map(|(_, step, epoch)| (*step, *epoch));
        let open = |name: &str, last: Option<usize>| reopen(&folder.join(name), last);
        let (step, epoch) = last.unzip();
        let (steps, is_new) = open("steps.csv", step)?;
        let mut steps = csv::WriterBuilder::new().has_headers(false).from_writer(steps);
        if is_new {
            let metrics = trained.iter().skip(1).map(|metric| metric.name.as_str());
            steps.write_record(STEP_COLUMNS.into_iter().chain(metrics))?;
        }
        let (ranks, is_new) = open("ranks.csv", epoch)?;
        let ranks = csv::WriterBuilder::new().has_headers(is_new).from_writer(ranks);
        open("epochs.csv", epoch)?;
        let tables = Tables { steps, epochs: folder.join("epochs.csv"), ranks, failure: None };
        let progress = resumed.map(|(progress, ..)| progress).unwrap_or_default();
        Ok(RunLog { monitor, set, state: Mutex::new((tables, progress)) })
    }

    /// Returns the current progress.
    ///
    /// # Errors
    /// If a row could not be written.
    pub fn progress(&self) -> Result<Progress> {
        let mut state = lock(&self.state);
        match state.0.failure.take() {
            Some(failure) => Err(failure.context("cannot write the run's tables")),
            None => Ok(state.1.clone()),
        }
    }

    /// Syncs the tables to disk. Rows can be added meanwhile.
    pub fn sync(&self) -> Result<()> {
        let files = {
            let state = lock(&self.state);
            // The table of epochs is synced when it is written.
            [&state.0.steps, &state.0.ranks].map(|table| table.get_ref().try_clone())
        };
        let sync = |file: io::Result<File>| file?.sync_data();
        files.into_iter().try_for_each(sync).context("cannot write the run's tables")
    }

    /// Returns why training ends early, if the monitored metric has not improved for `patience` epochs.
    pub fn early_stop(&self, patience: usize) -> Option<String> {
        let state = lock(&self.state);
        let Best { epoch, value, ago, .. } = state.1.best.as_ref().filter(|best| best.ago >= patience)?;
        let Monitor { metric, of_training } = &self.monitor;
        let (set, name) = (if *of_training { "train" } else { self.set.name() }, &metric.name);
        let value = metric.text(value.unwrap_or(f64::NAN));
        Some(format!(
            "{set} {name} has not improved for {ago} epoch(s): the best is {value} in epoch {epoch}"
        ))
    }

    /// Whether the monitored metric has not improved for `patience` epochs, or a multiple of it.
    pub fn is_plateau(&self, patience: usize) -> bool {
        let state = lock(&self.state);
        state.1.best.as_ref().is_some_and(|best| best.ago > 0 && best.ago.is_multiple_of(patience))
    }
}

/// Opens the table at `path` for appending, without the rows whose first column is above `last` and without an
/// incomplete last row. Without `last`, the table is new. Also returns whether it has no header.
fn reopen(path: &Path, last: Option<usize>) -> Result<(File, bool)> {
    let failed = || format!("cannot write {}", path.display());
    let bytes = if last.is_some() { atomic_file::read(path)?.unwrap_or_default() } else { Vec::new() };
    let text = String::from_utf8(bytes).with_context(failed)?;
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let header = lines.next().unwrap_or_default();
    let number = |line: &str| line.split(',').next().and_then(|number| number.parse::<usize>().ok());
    let kept: String = lines.filter(|line| number(line).is_some_and(|number| Some(number) <= last)).collect();
    atomic_file::write(path, format!("{header}{kept}").as_bytes())?;
    let file = File::options().append(true).open(path).with_context(failed)?;
    Ok((file, header.is_empty()))
}

impl Observer for RunLog {
    fn step_done(&self, report: &StepReport) {
        let &StepReport { step, epoch, samples, elapsed, .. } = report;
        let (tables, progress) = &mut *lock(&self.state);
        *progress = Progress {
            epoch,
            step,
            samples: progress.samples + samples,
            training: progress.training + elapsed,
            ..std::mem::take(progress)
        };
        tables.try_write(|tables| {
            let metrics: Vec<f64> = report.metrics.iter().map(|of| of.value).collect();
            tables.steps.serialize((StepRow::of_step(report), metrics))?;
            Ok(tables.steps.flush()?)
        });
    }

    fn epoch_done(&self, report: &EpochReport) {
        let value = self.monitor.value(report);
        let (tables, progress) = &mut *lock(&self.state);
        progress.best = Some(match progress.best.take() {
            Some(best) if !self.monitor.is_better(value, best.value) => Best { ago: best.ago + 1, ..best },
            Some(_) | None => Best { step: progress.step, epoch: report.epoch, value, ago: 0 },
        });
        progress.evaluation = evaluation(report);
        progress.callbacks = logged(report);
        progress.digest.clone_from(&report.digest);
        tables.try_write(|tables| {
            RankRow::of_epoch(report).try_for_each(|row| tables.ranks.serialize(row))?;
            tables.ranks.flush()?;
            add_epoch(&tables.epochs, self.set, report)
        });
    }

    fn tested(&self, report: &EpochReport) {
        let (_, progress) = &mut *lock(&self.state);
        progress.tested = Some(evaluation(report));
        progress.callbacks = logged(report);
    }
}

/// The metrics of an epoch's report.
fn evaluation(report: &EpochReport) -> Evaluation {
    let finite = |value: f64| Some(value).filter(|value| value.is_finite());
    report.metrics.iter().map(|of| (of.metric.name.clone(), finite(of.value))).collect()
}

/// Values of callbacks by name, for `summary.json`.
fn logged(report: &EpochReport) -> Map<String, Value> {
    let value = |logged: &LoggedValue| logged.number.map_or_else(|| logged.text.as_str().into(), Value::from);
    report.logged.iter().map(|logged| (logged.name.clone(), value(logged))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use collective::metric::MetricValue;
    use std::io::Write;

    #[test]
    fn a_resumed_table_has_no_rows_after_the_checkpoint_and_no_truncated_row() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("steps.csv");
        std::fs::write(&path, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.2\n12,0.")?;
        let (mut table, _) = reopen(&path, Some(10))?;
        table.write_all(b"11,0.25\n")?;
        assert_eq!(std::fs::read_to_string(&path)?, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.25\n");
        // A run killed before its first row has no header yet.
        std::fs::write(&path, "")?;
        let trained = [MetricInfo::loss(), MetricInfo::accuracy()];
        let resumed = Some((Progress::default(), 0, 0));
        let log = RunLog::open(folder.path(), &trained, monitor(), EvaluatedSet::Test, resumed)?;
        let accuracy = MetricValue { metric: MetricInfo::accuracy(), value: 0.5 };
        log.step_done(&StepReport { metrics: vec![accuracy], ..StepReport::default() });
        log.progress()?;
        let table = std::fs::read_to_string(&path)?;
        let header = "step,epoch,loss,lr,samples_per_second,loss_scale,skipped,accuracy\n";
        assert_eq!(table, format!("{header}0,0,0.0,0.0,0.0,,,0.5\n"));
        Ok(())
    }

    fn report(epoch: usize, loss: f64, logged: Vec<LoggedValue>) -> EpochReport {
        let of = |value| vec![MetricValue { metric: MetricInfo::loss(), value }];
        EpochReport { epoch, train: of(0.0), metrics: of(loss), logged, ..EpochReport::default() }
    }

    fn monitor() -> Monitor {
        Monitor { metric: MetricInfo::loss(), of_training: false }
    }

    #[test]
    fn a_finite_value_is_better_than_nan() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = RunLog::open(folder.path(), &[], monitor(), EvaluatedSet::Test, None)?;
        let best_of = |epoch, loss| {
            log.epoch_done(&report(epoch, loss, vec![]));
            log.progress().map(|progress| progress.best.map(|best| (best.epoch, best.ago)))
        };
        assert_eq!(best_of(1, f64::NAN)?, Some((1, 0)));
        assert_eq!(best_of(2, f64::NAN)?, Some((1, 1)));
        assert_eq!(best_of(3, 5.0)?, Some((3, 0)));
        assert_eq!(best_of(4, f64::INFINITY)?, Some((3, 1)));
        assert_eq!(best_of(5, f64::NAN)?, Some((3, 2)));
        let message = "test loss has not improved for 2 epoch(s): the best is 5.0000 in epoch 3";
        assert_eq!((log.early_stop(2).as_deref(), log.early_stop(3)), (Some(message), None));
        // A checkpoint stores the progress as JSON, which has no NaN.
        let progress = log.progress()?;
        assert_eq!(serde_json::from_str::<Progress>(&serde_json::to_string(&progress)?)?, progress);
        Ok(())
    }

    #[test]
    fn the_table_of_epochs_gets_columns_for_callbacks() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let log = RunLog::open(folder.path(), &[], monitor(), EvaluatedSet::Test, None)?;
        let table = || std::fs::read_to_string(folder.path().join("epochs.csv"));
        log.epoch_done(&report(1, 0.5, vec![]));
        assert_eq!(table()?, "epoch,train_loss,test_loss,valid_loss,seconds\n1,0,0.5,,0\n");
        let logged = || vec![LoggedValue::number("seconds", 3.0), LoggedValue::text("plot", "a.png")];
        log.epoch_done(&report(2, 0.25, logged()));
        let grown =
            "epoch,train_loss,test_loss,valid_loss,seconds,callback_seconds\n1,0,0.5,,0,\n2,0,0.25,,0,3\n";
        assert_eq!(table()?, grown);
        assert_eq!(log.progress()?.callbacks, serde_json::from_str(r#"{"seconds": 3.0, "plot": "a.png"}"#)?);
        // A run resumed after epoch 1 has its row.
        let resumed = Some((Progress::default(), 1, 1));
        let log = RunLog::open(folder.path(), &[], monitor(), EvaluatedSet::Test, resumed)?;
        log.epoch_done(&report(2, 0.25, logged()));
        assert_eq!(table()?, grown);
        Ok(())
    }
}
