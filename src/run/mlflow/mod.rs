//! Experiment tracking with MLflow's REST API, on rank 0.
//!
//! A thread sends the run, so that a slow or missing server does not delay training.

mod buffer;
mod client;
mod metric_logger;
mod params;
mod remote;
mod sender;
mod server;

pub use buffer::Status;
pub use metric_logger::MlflowLogger;
pub use remote::RUN_FILE;
pub use server::Server;

use crate::{
    process::console::Console,
    run::{
        EvaluatedSet,
        scalars::{evaluation_scalars, step_scalars},
    },
};
use anyhow::{Context, Result};
use buffer::{Buffer, Counts, End, Point};
use client::Client;
use collective::strategy::{EpochReport, Observer, StepReport};
use params::{flattened, metric_name};
use sender::{Report, Sender};
use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
        mpsc::{self, Receiver},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Time that the thread has to report after its limits.
const MARGIN: Duration = Duration::from_millis(200);

/// Description of a run for MLflow.
#[derive(Clone, Debug, Default)]
pub struct RunInfo {
    /// Experiment, which is created if necessary.
    pub experiment: String,
    /// Display name of the run.
    pub name: String,
    folder: Option<PathBuf>,
    params: BTreeMap<String, String>,
    tags: BTreeMap<String, String>,
}

impl RunInfo {
    /// Creates a description; `config` is an object whose fields are logged as parameters.
    pub fn new(experiment: Option<&str>, name: &str, config: &serde_json::Value) -> Self {
        let program = program_name();
        let tags = [("burn_ddp.version", env!("CARGO_PKG_VERSION")), ("mlflow.source.name", &program)];
        Self {
            experiment: experiment.map_or_else(|| program.clone(), str::to_owned),
            name: name.into(),
            folder: None,
            params: flattened(config),
            tags: tags.map(|(key, value)| (key.into(), value.into())).into(),
        }
    }

    /// Stores the id of the MLflow run in the run folder `folder`, or continues the run that is stored there.
    pub fn in_folder(self, folder: &Path) -> Self {
        Self { folder: Some(folder.into()), ..self }
    }
}

/// Name of this program, or MLflow's default experiment.
fn program_name() -> String {
    let program = env::current_exe().ok();
    let name = program.as_ref().and_then(|path| path.file_stem()).map(|name| name.to_string_lossy().into());
    name.unwrap_or_else(|| "Default".into())
}

/// Sends a run to an MLflow server.
pub struct MlflowRun {
    uri: String,
    experiment: String,
    buffer: Arc<Buffer>,
    console: Console,
    set: EvaluatedSet,
    /// Number of optimizer steps.
    step: AtomicUsize,
    done: Mutex<Option<Receiver<Report>>>,
}

impl MlflowRun {
    /// Starts the thread that sends the run. `set` is evaluated after every epoch.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(server: Server, info: RunInfo, set: EvaluatedSet, console: Console) -> Result<Self> {
        let (uri, experiment) = (server.uri().to_owned(), info.experiment.clone());
        let buffer = Arc::new(Buffer::default());
        let (finished, done) = mpsc::channel();
        let shared = buffer.clone();
        let send = move || {
            let mut report = Report::default();
            let mut sender = Sender::new(Client::new(server), info, shared.clone(), console);
            let run = sender.send(&mut report);
            // The receiver waits for the points first and for the files second.
            let _ = finished.send(Report { files: vec![], page: report.page.clone(), ended: report.ended });
            if let Some((run, end)) = run.zip(shared.end()) {
                report.files = sender.upload(&run, &end);
                let _ = finished.send(report);
            }
        };
        thread::Builder::new().name("mlflow".into()).spawn(send).context("cannot start a thread")?;
        let (step, done) = (AtomicUsize::new(0), Mutex::new(Some(done)));
        Ok(Self { uri, experiment, buffer, console, set, step, done })
    }

    /// Server and experiment, for display.
    pub fn destination(&self) -> String {
        format!("{}, experiment {}", self.uri, self.experiment)
    }

    /// Logs a value at `step` without waiting for the server.
    pub fn scalar(&self, name: &str, step: usize, value: f64) {
        self.buffer.push(Point { key: metric_name(name), value, step, time: now() });
    }

    /// Sends the remaining points, `status` and `files`. Only the first call has an effect.
    ///
    /// The wait is bounded. What is not sent is a warning.
    pub fn close(&self, status: Status, files: Vec<PathBuf>) {
        let Some(done) = self.done.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let (wait, uploads) = status.limits();
        let deadline = Instant::now() + wait;
        let names: Vec<String> =
            files.iter().filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned())).collect();
        self.buffer.finish(End { status, files, deadline });
        let report = done.recv_timeout(wait + MARGIN).unwrap_or_default();
        let Counts { received, unsent } = self.buffer.counts();
        let missing = match report.ended {
            true if names.is_empty() => vec![],
            true => done.recv_timeout(uploads + MARGIN).map_or(names, |report| report.files),
            false => names,
        };
        let points = (unsent > 0).then(|| format!("{unsent} of {received} points"));
        let status = (!report.ended).then(|| "the status".to_owned());
        let unsent: Vec<String> = points.into_iter().chain(status).chain(missing).collect();
        if !unsent.is_empty() {
            self.console.warn(&format!("MLflow server {}: not sent: {}", self.uri, unsent.join(", ")));
        }
        if let Some(page) = report.page {
            self.console.print(&format!("mlflow run    {page}"));
        }
    }

    fn evaluated(&self, set: EvaluatedSet, report: &EpochReport) {
        let step = self.step.load(Ordering::Relaxed);
        evaluation_scalars(set, report).for_each(|(name, value)| self.scalar(&name, step, value));
    }
}

/// Milliseconds since the Unix epoch.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

impl Observer for MlflowRun {
    fn step_done(&self, report: &StepReport) {
        self.step.store(report.step, Ordering::Relaxed);
        step_scalars(report).for_each(|(name, value)| self.scalar(name, report.step, value));
    }

    fn epoch_done(&self, report: &EpochReport) {
        self.scalar("train_epoch/loss", self.step.load(Ordering::Relaxed), report.train_loss);
        self.evaluated(self.set, report);
    }

    fn tested(&self, report: &EpochReport) {
        self.evaluated(EvaluatedSet::Test, report);
    }
}

impl Drop for MlflowRun {
    fn drop(&mut self) {
        self.close(Status::Failed, vec![]);
    }
}
