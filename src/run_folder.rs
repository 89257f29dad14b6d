//! What a run leaves behind: `config.json`, `steps.csv`, `epochs.csv`, `summary.json` and the model.

use crate::{
    config::{Mode, RunConfig},
    device::LocalDevice,
    evaluation::Evaluation,
};
use anyhow::{Context, Result, bail};
use burn::module::Module;
use collective::strategy::{EpochReport, Observer, StepReport};
use serde::Serialize;
use std::{
    fs::{self, File},
    io::{ErrorKind, Write},
    path::{Path, PathBuf},
    sync::{Mutex, PoisonError},
    time::Duration,
};
use time::{OffsetDateTime, macros::format_description};

/// The folder of one run. Only rank 0 has one.
#[derive(Clone, Debug)]
pub struct RunFolder {
    path: PathBuf,
}

/// The result of a run, as `summary.json` keeps it.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    pub test_accuracy: f64,
    pub test_loss: f64,
    /// Training images over all ranks, over the time of the training steps alone.
    pub images_per_second: f64,
    pub world_size: usize,
    pub mode: Mode,
    pub device: LocalDevice,
    pub transport: String,
    pub dataset: String,
    /// Epochs begun, and optimizer steps done.
    pub epochs: usize,
    pub steps: usize,
    /// From the first rank's start to the end of the last evaluation.
    pub seconds: f64,
    /// SHA-256 over all parameters and buffers, equal on all ranks.
    pub parameter_digest: String,
}

impl RunFolder {
    /// Creates `path`, or a new `runs/<date-time>`, with a number behind it if another run began in the
    /// same second.
    ///
    /// # Errors
    /// If the folder holds a run already, or cannot be written to.
    pub fn create(path: Option<PathBuf>) -> Result<Self> {
        let Some(path) = path else { return Self::fresh(Path::new("runs"), &now()?) };
        if path.join("config.json").exists() {
            bail!("--run-dir {} holds a run already; name another folder or remove it", path.display());
        }
        fs::create_dir_all(&path).with_context(|| format!("cannot create --run-dir {}", path.display()))?;
        Ok(Self { path })
    }

    /// A folder in `parent` that was not there before.
    fn fresh(parent: &Path, name: &str) -> Result<Self> {
        let failed = |path: &Path| {
            format!("cannot create the run folder {}; choose one with --run-dir", path.display())
        };
        fs::create_dir_all(parent).with_context(|| failed(parent))?;
        let mut path = parent.join(name);
        for number in 2.. {
            match fs::create_dir(&path) {
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                    path = parent.join(format!("{name}-{number}"));
                }
                made => {
                    made.with_context(|| failed(&path))?;
                    break;
                }
            }
        }
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn write_config(&self, config: &RunConfig) -> Result<()> {
        self.write("config.json", &serde_json::to_vec_pretty(config)?)
    }

    pub fn write_summary(&self, summary: &Summary) -> Result<()> {
        self.write("summary.json", &serde_json::to_vec_pretty(summary)?)
    }

    /// The model as a Burn record, `model.bpk`.
    pub fn write_model<M: Module>(&self, model: M) -> Result<()> {
        let bytes =
            model.into_record().into_bytes().map_err(|e| anyhow::anyhow!("cannot pack the model: {e}"))?;
        self.write("model.bpk", &bytes)
    }

    /// Complete or not at all: a temporary name, synced, then renamed.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, temporary) = (self.path.join(name), self.path.join(format!(".{name}.tmp")));
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    /// The observer that keeps `steps.csv` and `epochs.csv`.
    pub fn log(&self) -> Result<RunLog> {
        let open = |name: &str| {
            let path = self.path.join(name);
            csv::Writer::from_path(&path).with_context(|| format!("cannot write {}", path.display()))
        };
        let tables = Tables { steps: open("steps.csv")?, epochs: open("epochs.csv")?, failure: None };
        Ok(RunLog { state: Mutex::new((tables, Progress::default())) })
    }
}

/// UTC, sortable, and fit for a file name on every system.
fn now() -> Result<String> {
    let format = format_description!("[year]-[month]-[day]T[hour]-[minute]-[second]Z");
    Ok(OffsetDateTime::now_utc().format(&format)?)
}

/// Follows a run: writes its tables, and keeps what the summary needs.
pub struct RunLog {
    state: Mutex<(Tables, Progress)>,
}

struct Tables {
    steps: csv::Writer<File>,
    epochs: csv::Writer<File>,
    failure: Option<csv::Error>,
}

/// Where the run is.
#[derive(Clone, Debug, Default)]
pub struct Progress {
    pub epoch: usize,
    pub step: usize,
    pub samples: usize,
    /// Sum of the steps' times.
    pub training: Duration,
    pub evaluation: Evaluation,
    pub digest: String,
}

#[derive(Serialize)]
struct StepRow {
    step: usize,
    epoch: usize,
    loss: f64,
    lr: f64,
    images_per_second: f64,
}

#[derive(Serialize)]
struct EpochRow {
    epoch: usize,
    train_loss: f64,
    test_loss: f64,
    test_accuracy: f64,
    seconds: f64,
}

impl Tables {
    /// Keeps the first failure; every row reaches the file at once, so that a crash loses none.
    fn keep(&mut self, write: impl FnOnce(&mut Self) -> csv::Result<()>) {
        if self.failure.is_none() {
            self.failure = write(self).err();
        }
    }
}

impl RunLog {
    /// Where the run is now.
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

    fn update(&self, update: impl FnOnce(&mut Tables, &mut Progress)) {
        let (tables, progress) = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        update(tables, progress);
    }
}

impl Observer for RunLog {
    fn step_done(&self, report: &StepReport) {
        let &StepReport { step, epoch, loss, lr, samples, elapsed } = report;
        let images_per_second = samples as f64 / elapsed.as_secs_f64().max(1e-9);
        self.update(|tables, progress| {
            *progress = Progress {
                epoch,
                step,
                samples: progress.samples + samples,
                training: progress.training + elapsed,
                ..std::mem::take(progress)
            };
            tables.keep(|tables| {
                tables.steps.serialize(StepRow { step, epoch, loss, lr, images_per_second })?;
                Ok(tables.steps.flush()?)
            });
        });
    }

    fn epoch_done(&self, report: &EpochReport) {
        let evaluation = Evaluation::of(report);
        self.update(|tables, progress| {
            progress.evaluation = evaluation;
            progress.digest.clone_from(&report.digest);
            tables.keep(|tables| {
                tables.epochs.serialize(EpochRow {
                    epoch: report.epoch,
                    train_loss: report.train_loss,
                    test_loss: evaluation.loss,
                    test_accuracy: evaluation.accuracy,
                    seconds: report.elapsed.as_secs_f64(),
                })?;
                Ok(tables.epochs.flush()?)
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_the_same_second_get_folders_of_their_own() -> Result<()> {
        let parent = tempfile::tempdir()?;
        let folders = (0..3).map(|_| RunFolder::fresh(parent.path(), "now")).collect::<Result<Vec<_>>>()?;
        let names: Vec<_> = folders.iter().filter_map(|folder| folder.path().file_name()).collect();
        assert_eq!(names, ["now", "now-2", "now-3"]);
        Ok(())
    }
}
