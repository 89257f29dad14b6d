//! TensorBoard event files in `RUN/tensorboard`, written by rank 0.
//!
//! The format is small, and the existing crates for it are unmaintained.

mod event;
mod histogram;

pub use event::Picture;
pub use histogram::{GradientHistograms, Histogram};

use super::{
    evaluation::{EvaluatedSet, evaluation_scalars, step_scalars},
    tables::RankRow,
    tracker::{MetricsLogger, ScalarSink},
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
    /// First write error.
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
        let state = State { file: BufWriter::new(file), flushed: Instant::now(), failure: None };
        let log = Self { path, set, state: Mutex::new(state) };
        log.write(|state| {
            state.add(0, What::version())?;
            state.add(step + 1, What::start())
        });
        log.flush()?;
        Ok(log)
    }

    /// Flushes buffered events.
    ///
    /// # Errors
    /// If a write has failed since the last call.
    pub fn flush(&self) -> Result<()> {
        self.write(State::flush);
        let failure = lock(&self.state).failure.take();
        failure.map_or(Ok(()), |error| {
            Err(error).with_context(|| format!("cannot write {}", self.path.display()))
        })
    }

    /// Removes the file, and its folder if it is then empty. Errors are ignored.
    pub fn remove(&self) {
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }

    /// Writes an image at `step`.
    pub fn image(&self, tag: &'static str, step: usize, picture: Picture) {
        self.write(|state| {
            state.add(step, What::image(tag, &picture))?;
            state.flush()
        });
    }

    /// Writes a scalar at `step`.
    pub fn scalar(&self, tag: String, step: usize, value: f64) {
        self.write(|state| state.add(step, What::scalar(&tag, value)));
    }

    /// Writes a histogram at `step`.
    pub fn histogram(&self, tag: String, step: usize, values: Histogram) {
        self.write(|state| state.add(step, What::histogram(&tag, &values)));
    }

    fn evaluated(&self, set: EvaluatedSet, report: &EpochReport) {
        self.write(|state| {
            state.scalars(report.step, evaluation_scalars(set, report))?;
            state.flush()
        });
    }

    /// Runs `write` unless a write has failed; [`flush`](Self::flush) returns the error.
    fn write(&self, write: impl FnOnce(&mut State) -> io::Result<()>) {
        let state = &mut *lock(&self.state);
        if state.failure.is_none() {
            state.failure = write(state).err();
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
    fn add(&mut self, step: usize, what: What) -> io::Result<()> {
        self.file.write_all(&event::record(&what.encode(now(), step)))
    }

    fn scalars(
        &mut self,
        step: usize,
        scalars: impl IntoIterator<Item = (impl AsRef<str>, f64)>,
    ) -> io::Result<()> {
        scalars.into_iter().try_for_each(|(tag, value)| self.add(step, What::scalar(tag.as_ref(), value)))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.flushed = Instant::now();
        self.file.flush()
    }
}

impl Observer for EventLog {
    fn step_done(&self, report: &StepReport) {
        self.write(|state| {
            state.scalars(report.step, step_scalars(report))?;
            if state.flushed.elapsed() > FLUSH_EVERY { state.flush() } else { Ok(()) }
        });
    }

    fn epoch_done(&self, report: &EpochReport) {
        self.write(|state| {
            RankRow::of_epoch(report).try_for_each(|row| {
                let RankRow { rank, seconds, data_wait_seconds, gradient_wait_seconds, .. } = row;
                let scalars = [
                    (format!("rank_{rank}/seconds"), seconds),
                    (format!("rank_{rank}/data_wait_seconds"), data_wait_seconds),
                    (format!("rank_{rank}/gradient_wait_seconds"), gradient_wait_seconds),
                ];
                state.scalars(report.step, scalars)
            })
        });
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

    fn finish(&self) {
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
