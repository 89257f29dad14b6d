//! Metrics of a run: `steps.csv`, `epochs.csv`, `ranks.csv` and the progress that checkpoints store.

use super::{
    evaluation::Evaluation,
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
    /// SHA-256 of all parameters and buffers at the last evaluation.
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
    pub fn create(folder: &Path, monitor: Monitor) -> Result<Self> {
        let open = |name: &str| {
            let path = folder.join(name);
            csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))
        };
        let tables = [open("steps.csv")?, open("epochs.csv")?, open("ranks.csv")?];
        Ok(Self::new(tables, monitor, Progress::default()))
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
        progress: Progress,
        step: usize,
        epoch: usize,
    ) -> Result<Self> {
        let open = |name: &str, columns: Result<String>, last: usize| {
            let path = folder.join(name);
            let table = columns.and_then(|columns| reopen(&path, &columns, last));
            table.with_context(|| format!("cannot go on with {}", path.display()))
        };
        let tables = [
            open("steps.csv", header::<StepRow>(), step)?,
            open("epochs.csv", header::<EpochRow>(), epoch)?,
            open("ranks.csv", header::<RankRow>(), epoch)?,
        ];
        Ok(Self::new(tables, monitor, progress))
    }

    fn new([steps, epochs, ranks]: [csv::Writer<File>; 3], monitor: Monitor, progress: Progress) -> Self {
        let tables = Tables { steps, epochs, ranks, failure: None };
        RunLog { monitor, state: Mutex::new((tables, progress)) }
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

/// Returns the CSV header line of the row type `R`.
fn header<R: Serialize + Default>() -> Result<String> {
    let mut table = csv::Writer::from_writer(Vec::new());
    table.serialize(R::default())?;
    let text = String::from_utf8(table.into_inner()?)?;
    Ok(text.split_inclusive('\n').next().unwrap_or_default().into())
}

/// Opens the table at `path` for appending, keeping rows whose first column is at most `last`.
///
/// A truncated last row is removed. Columns that an older version did not write are added with empty cells.
fn reopen(path: &Path, columns: &str, last: usize) -> Result<csv::Writer<File>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
        Err(error) => return Err(error.into()),
    };
    let mut lines = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let mut header = lines.next().unwrap_or_default();
    let added = columns.strip_prefix(header.trim_end()).filter(|_| !header.is_empty()).unwrap_or_default();
    let empty = ",".repeat(added.matches(',').count());
    let number = |line: &str| line.split(',').next().and_then(|number| number.parse::<usize>().ok());
    let kept = lines.filter(|line| number(line).is_some_and(|number| number <= last));
    let kept: String = kept.map(|line| format!("{}{empty}\n", line.trim_end())).collect();
    if !empty.is_empty() {
        header = columns;
    }
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
                tables.epochs.serialize(EpochRow {
                    epoch: report.epoch,
                    train_loss: report.train_loss,
                    test_loss: evaluation.loss,
                    test_accuracy: evaluation.accuracy,
                    seconds: report.elapsed.as_secs_f64(),
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_table_has_no_rows_after_the_checkpoint_and_no_truncated_row() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("steps.csv");
        std::fs::write(&path, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.2\n12,0.")?;
        let mut table = reopen(&path, "step,loss\n", 10)?;
        table.write_record(["11", "0.25"])?;
        table.flush()?;
        assert_eq!(std::fs::read_to_string(&path)?, "step,loss\n1,0.5\n2,0.4\n10,0.3\n11,0.25\n");
        // A run killed before its first row has no header yet.
        std::fs::write(&path, "")?;
        let columns = header::<StepRow>()?;
        reopen(&path, &columns, 0)?.serialize(StepRow::default())?;
        assert!(std::fs::read_to_string(&path)?.starts_with("step,epoch,loss"));
        Ok(())
    }

    #[test]
    fn a_table_of_an_older_version_gets_the_new_columns() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("steps.csv");
        std::fs::write(
            &path,
            "step,epoch,loss,lr,samples_per_second\n1,1,0.5,0.1,100.0\n2,1,0.4,0.1,100.0\n",
        )?;
        let row = StepRow { step: 2, loss_scale: Some(65536.0), skipped: Some(1), ..StepRow::default() };
        reopen(&path, &header::<StepRow>()?, 1)?.serialize(row)?;
        let rows: Vec<StepRow> = csv::Reader::from_path(&path)?.deserialize().collect::<csv::Result<_>>()?;
        let shown: Vec<_> = rows.iter().map(|row| (row.step, row.loss_scale, row.skipped)).collect();
        assert_eq!(shown, [(1, None, None), (2, Some(65536.0), Some(1))]);
        Ok(())
    }
}
