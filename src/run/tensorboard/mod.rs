//! TensorBoard event files in `RUN/tensorboard`, written by rank 0.
//!
//! The format is small, and the existing crates for it are unmaintained.

mod event;
mod histogram;

pub use histogram::{GradientHistograms, Histogram};

use super::{
    tables::{EvaluatedSet, RankRow},
    tracker::{MetricsLogger, ScalarSink, log_evaluation, log_step},
};
use crate::process::{console::Console, lock, now};
use anyhow::{Context, Result};
use collective::strategy::{EpochReport, Observer, StepReport};
use event::What;
use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant},
};

/// Maximum time before new values are flushed.
const FLUSH_EVERY: Duration = Duration::from_secs(10);

/// Event file of this process.
pub struct EventLog {
    path: PathBuf,
    set: EvaluatedSet,
    state: Mutex<State>,
}

struct State {
    file: BufWriter<File>,
    flushed: Instant,
    /// Whether a write has failed, after which nothing is written.
    failed: bool,
    /// Its error, until it is returned.
    failure: Option<io::Error>,
}

impl EventLog {
    /// Folder of a run's event files.
    pub fn folder(run: &Path) -> PathBuf {
        run.join("tensorboard")
    }

    /// Creates an event file for the run folder `run`, starting after `step` steps.
    ///
    /// TensorBoard discards later steps of earlier files.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(run: &Path, step: usize, set: EvaluatedSet) -> Result<Self> {
        let folder = Self::folder(run);
        let failed = || format!("cannot write TensorBoard's event file in {}", folder.display());
        fs::create_dir_all(&folder).with_context(failed)?;
        let (path, file) = fresh(&folder).with_context(failed)?;
        let state =
            State { file: BufWriter::new(file), flushed: Instant::now(), failed: false, failure: None };
        let log = Self { path, set, state: Mutex::new(state) };
        log.add(0, &What::version());
        log.add(step + 1, &What::start());
        log.flush()?;
        Ok(log)
    }

    /// Flushes buffered events.
    ///
    /// # Errors
    /// If a write has failed since the last call.
    pub fn flush(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.flush();
        state.failure.take().map_or(Ok(()), |error| {
            Err(error).with_context(|| format!("cannot write {}", self.path.display()))
        })
    }

    /// Removes the file, and its folder if it is then empty. Errors are ignored.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }

    /// Writes a greyscale image in PNG format at `step`. `size` is its width and height.
    pub fn image(&self, tag: &str, step: usize, size: [usize; 2], png: &[u8]) {
        self.add(step, &What::image(tag, size, png));
        lock(&self.state).flush();
    }

    /// Writes a scalar at `step`.
    pub fn scalar(&self, tag: String, step: usize, value: f64) {
        self.add(step, &What::scalar(&tag, value));
    }

    /// Writes a histogram at `step`.
    pub fn histogram(&self, tag: String, step: usize, values: Histogram) {
        self.add(step, &What::histogram(&tag, &values));
    }

    fn evaluated(&self, set: EvaluatedSet, report: &EpochReport) {
        log_evaluation(self, set, report);
        lock(&self.state).flush();
    }

    fn add(&self, step: usize, what: &What) {
        let record = event::record(&what.encode(now(), step));
        let mut state = lock(&self.state);
        state.write(|file| file.write_all(&record));
        if state.flushed.elapsed() > FLUSH_EVERY {
            state.flush();
        }
    }
}

/// Creates a file whose name sorts behind the others, because TensorBoard reads files in that order.
fn fresh(folder: &Path) -> io::Result<(PathBuf, File)> {
    let before = fs::read_dir(folder)?.count();
    for number in before.. {
        let path = folder.join(format!("events.out.tfevents.{:010.0}.{number:04}", now().floor()));
        match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            file => return Ok((path, file?)),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

impl State {
    /// Runs `write` unless a write has failed before, and stores its error.
    fn write(&mut self, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) {
        if !self.failed {
            self.failure = write(&mut self.file).err();
            self.failed = self.failure.is_some();
        }
    }

    fn flush(&mut self) {
        self.flushed = Instant::now();
        self.write(BufWriter::flush);
    }
}

impl Observer for EventLog {
    fn step_done(&self, report: &StepReport) {
        log_step(self, report);
    }

    fn epoch_done(&self, report: &EpochReport) {
        for RankRow { rank, seconds, data_wait_seconds, gradient_wait_seconds, .. } in
            RankRow::of_epoch(report)
        {
            for (name, value) in [
                ("seconds", seconds),
                ("data_wait_seconds", data_wait_seconds),
                ("gradient_wait_seconds", gradient_wait_seconds),
            ] {
                self.scalar(format!("rank_{rank}/{name}"), report.step, value);
            }
        }
        self.evaluated(self.set, report);
    }

    fn tested(&self, report: &EpochReport) {
        self.evaluated(EvaluatedSet::Test, report);
    }
}

impl ScalarSink for EventLog {
    fn scalar(&self, name: &str, step: usize, value: f64) {
        self.scalar(name.to_owned(), step, value);
    }
}

impl Drop for EventLog {
    fn drop(&mut self) {
        if let Err(error) = self.flush() {
            Console::new(true).warn(&format!("{error:#}"));
        }
    }
}

/// Writes the numeric metrics of a burn-train `Learner` to TensorBoard event files.
///
/// [`Trainer`](crate::Trainer) writes its events as an [`Observer`] instead: a `MetricLogger` gets neither the learning
/// rate nor the step of a resumed run.
///
/// ```no_run
/// # use burn_ddp::run::tensorboard::TensorBoardLogger;
/// # fn configure<M: burn::train::LearnerModel + 'static>(
/// #     training: burn::train::SupervisedTraining<M>,
/// # ) -> anyhow::Result<burn::train::SupervisedTraining<M>> {
/// let training = training.with_metric_logger(TensorBoardLogger::create("runs/mine".as_ref())?);
/// # Ok(training)
/// # }
/// ```
pub type TensorBoardLogger = MetricsLogger<EventLog>;

impl TensorBoardLogger {
    /// Creates an event file in the folder `tensorboard` of `folder`.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(folder: &Path) -> Result<Self> {
        Ok(Self::new(EventLog::create(folder, 0, EvaluatedSet::Valid)?))
    }
}
