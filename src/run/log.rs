//! Metrics of a run: `steps.csv`, `epochs.csv`, `ranks.csv` and the progress that checkpoints store.

use super::{
    evaluation::{EvaluatedSet, Evaluation},
    tables::{EpochRow, RankRow, StepRow},
};
use crate::{config::Monitor, process::atomic_file};
use anyhow::{Context, Result};
use collective::strategy::{EpochReport, Observer, StepReport};
use serde::{Deserialize, Serialize};
use std::{
    fs::File,
    io::ErrorKind,
    path::Path,
    sync::{Mutex, PoisonError},
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
    epochs: csv::Writer<File>,
    ranks: csv::Writer<File>,
    failure: Option<csv::Error>,
}

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
    pub digest: String,
    /// Wall time of earlier processes of a resumed run.
    pub seconds: f64,
    pub best: Option<Best>,
}

/// Best evaluation so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Best {
    /// Optimizer step of the evaluation.
    pub step: usize,
    pub evaluation: Evaluation,
    /// Epochs since the evaluation.
    pub ago: usize,
}

impl Tables {
    /// Runs `write` unless a write has failed before, and stores its error.
    fn try_write(&mut self, write: impl FnOnce(&mut Self) -> csv::Result<()>) {
        if self.failure.is_none() {
            self.failure = write(self).err();
        }
    }
}

impl RunLog {
    /// Creates new tables in `folder`.
    ///
    /// # Errors
    /// If a table cannot be created.
    pub fn create(folder: &Path, monitor: Monitor, set: EvaluatedSet) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))
        };
        let tables = [open("steps.csv")?, open("epochs.csv")?, open("ranks.csv")?];
        Ok(Self::new(tables, monitor, set, Progress::default()))
    }

    /// Opens the tables of a run resumed with `progress`.
    ///
    /// Rows of steps after `step` and of epochs after `epoch` are removed.
    ///
    /// # Errors
    /// If a table cannot be read or written.
    pub fn resume(
        folder: &Path,
        monitor: Monitor,
        set: EvaluatedSet,
        progress: Progress,
        step: usize,
        epoch: usize,
    ) -> Result<Self> {
        let open = |name: &str, last: usize| {
            let path = folder.join(name);
            reopen(&path, last).with_context(|| format!("cannot append to {}", path.display()))
        };
        let tables = [open("steps.csv", step)?, open("epochs.csv", epoch)?, open("ranks.csv", epoch)?];
        Ok(Self::new(tables, monitor, set, progress))
    }

    fn new(
        [steps, epochs, ranks]: [csv::Writer<File>; 3],
        monitor: Monitor,
        set: EvaluatedSet,
        progress: Progress,
    ) -> Self {
        let tables = Tables { steps, epochs, ranks, failure: None };
        RunLog { monitor, set, state: Mutex::new((tables, progress)) }
    }

    /// Returns the current progress.
    ///
    /// # Errors
    /// If a row could not be written.
    pub fn progress(&self) -> Result<Progress> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match state.0.failure.take() {
            Some(failure) => Err(failure).context("cannot write the run's tables"),
            None => Ok(state.1.clone()),
        }
    }

    /// Syncs the tables to disk and returns the current progress.
    ///
    /// # Errors
    /// If a row could not be written or synced.
    pub fn sync(&self) -> Result<Progress> {
        let progress = self.progress()?;
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for table in [&state.0.steps, &state.0.epochs, &state.0.ranks] {
            table.get_ref().sync_data().context("cannot write the run's tables")?;
        }
        Ok(progress)
    }

    /// Number of epochs since the best evaluation.
    pub fn epochs_since_best(&self) -> usize {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.1.best.as_ref().map_or(0, |best| best.ago)
    }

    fn update(&self, update: impl FnOnce(&mut Tables, &mut Progress)) {
        let (tables, progress) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        update(tables, progress);
    }
}

/// Opens the table at `path` for appending, without the rows whose first column is above `last` and without an
/// incomplete last row.
fn reopen(path: &Path, last: usize) -> Result<csv::Writer<File>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let header = lines.next().unwrap_or_default();
    let number = |line: &str| line.split(',').next().and_then(|number| number.parse::<usize>().ok());
    let kept: String = lines.filter(|line| number(line).is_some_and(|number| number <= last)).collect();
    atomic_file::write(path, format!("{header}{kept}").as_bytes())?;
    let file = File::options().append(true).open(path)?;
    Ok(csv::WriterBuilder::new().has_headers(header.is_empty()).from_writer(file))
}

impl Observer for RunLog {
    fn step_done(&self, report: &StepReport) {
        let &StepReport { step, epoch, loss, lr, samples, elapsed, loss_scale, skipped } = report;
        let skipped = loss_scale.map(|_| u8::from(skipped));
        let loss_scale = loss_scale.map(f64::from);
        let samples_per_second = samples as f64 / elapsed.as_secs_f64().max(1e-9);
        self.update(|tables, progress| {
            *progress = Progress {
                epoch,
                step,
                samples: progress.samples + samples,
                training: progress.training + elapsed,
                ..std::mem::take(progress)
            };
            tables.try_write(|tables| {
                let row = StepRow { step, epoch, loss, lr, samples_per_second, loss_scale, skipped };
                tables.steps.serialize(row)?;
                Ok(tables.steps.flush()?)
            });
        });
    }

    fn epoch_done(&self, report: &EpochReport) {
        let evaluation = Evaluation::of(report);
        self.update(|tables, progress| {
            progress.evaluation = evaluation;
            progress.best = match progress.best {
                Some(best) if !evaluation.is_better(&best.evaluation, self.monitor) => {
                    Some(Best { ago: best.ago + 1, ..best })
                }
                Some(_) | None => Some(Best { step: progress.step, evaluation, ago: 0 }),
            };
            progress.digest.clone_from(&report.digest);
            tables.try_write(|tables| {
                let (loss, accuracy) = (Some(evaluation.loss), evaluation.accuracy);
                let row = EpochRow {
                    epoch: report.epoch,
                    train_loss: report.train_loss,
                    seconds: report.elapsed.as_secs_f64(),
                    ..EpochRow::default()
                };
                tables.epochs.serialize(match self.set {
                    EvaluatedSet::Test => EpochRow { test_loss: loss, test_accuracy: accuracy, ..row },
                    EvaluatedSet::Valid => EpochRow { valid_loss: loss, valid_accuracy: accuracy, ..row },
                })?;
                for (rank, time) in report.ranks.iter().enumerate() {
                    tables.ranks.serialize(RankRow {
                        epoch: report.epoch,
                        rank,
                        seconds: time.training.as_secs_f64(),
                        data_wait_seconds: time.data.as_secs_f64(),
                        gradient_wait_seconds: time.gradients.as_secs_f64(),
                    })?;
                }
                tables.ranks.flush()?;
                Ok(tables.epochs.flush()?)
            });
        });
    }

    fn tested(&self, report: &EpochReport) {
        self.update(|_, progress| progress.tested = Some(Evaluation::of(report)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_table_has_no_rows_after_the_checkpoint_and_no_truncated_row() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("steps.csv");
        std::fs::write(&path, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.2\n12,0.")?;
        let mut table = reopen(&path, 10)?;
        table.write_record(["11", "0.25"])?;
        table.flush()?;
        assert_eq!(std::fs::read_to_string(&path)?, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.25\n");
        // A run killed before its first row has no header yet.
        std::fs::write(&path, "")?;
        reopen(&path, 0)?.serialize(StepRow::default())?;
        assert!(std::fs::read_to_string(&path)?.starts_with("step,epoch,loss"));
        Ok(())
    }
}
