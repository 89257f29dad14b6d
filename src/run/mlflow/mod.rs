//! Experiment tracking with MLflow's REST API, on rank 0.
//!
//! A thread sends the run, so that a slow or missing server does not delay training.

mod client;
mod sender;

pub use client::Server;

use super::{
    tables::EvaluatedSet,
    tracker::{MetricsLogger, ScalarSink, Status, log_evaluation, log_step},
};
use crate::process::{self, console::Console, lock};
use anyhow::{Context, Result};
use collective::strategy::{EpochReport, Observer, StepReport};
use sender::Sender;
use serde_json::Value;
use std::{
    collections::BTreeMap,
    env,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
        mpsc,
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// File of a run folder that names its MLflow run.
pub(super) const RUN_FILE: &str = "mlflow.json";
/// Maximum number of buffered points: an hour without a server, at ten steps per second.
const CAPACITY: usize = 100_000;
/// Time that the thread has to report after its limits.
const MARGIN: Duration = Duration::from_millis(200);
const POLL: Duration = Duration::from_millis(5);
/// MLflow's limits, in bytes.
const MAX_NAME: usize = 250;
const MAX_VALUE: usize = 6000;

/// Description of a run for MLflow.
#[derive(Clone, Debug)]
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
    ///
    /// The id of the MLflow run is stored in `folder`, and the run that is stored there is continued.
    pub fn new(experiment: Option<&str>, name: &str, config: &Value, folder: Option<&Path>) -> Self {
        let program = env::current_exe().ok();
        let program = program.as_ref().and_then(|path| path.file_stem());
        let program = program.map_or_else(|| "Default".into(), |name| name.to_string_lossy().into_owned());
        let tags = [("burn_ddp.version", env!("CARGO_PKG_VERSION")), ("mlflow.source.name", &program)];
        let mut params = BTreeMap::new();
        flatten("", config, &mut params);
        Self {
            experiment: experiment.unwrap_or(&program).to_owned(),
            name: name.into(),
            folder: folder.map(Path::to_owned),
            params,
            tags: tags.map(|(key, value)| (key.into(), value.into())).into(),
        }
    }
}

/// Adds the fields of a JSON object: the field `b` of an object `a` becomes `a.b`.
///
/// Fields that are null are omitted, and values are truncated to MLflow's limit.
fn flatten(prefix: &str, value: &Value, found: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Null => return,
        Value::Object(fields) => {
            for (name, field) in fields {
                let name = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
                flatten(&name, field, found);
            }
            return;
        }
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    found.insert(metric_name(prefix), text[..text.floor_char_boundary(MAX_VALUE)].into());
}

/// Replaces the characters that MLflow does not accept in names of metrics and parameters.
fn metric_name(name: &str) -> String {
    let accepted = |c: char| c.is_ascii_alphanumeric() || "_-. /".contains(c);
    let mut name: String = name.chars().map(|c| if accepted(c) { c } else { '_' }).collect();
    name.truncate(MAX_NAME);
    name
}

impl Status {
    /// Name in MLflow's API.
    fn name(self) -> &'static str {
        match self {
            Status::Finished => "FINISHED",
            Status::Failed => "FAILED",
            Status::Killed => "KILLED",
        }
    }

    /// Time after a run for its remaining points and status, and for the uploads that follow.
    ///
    /// The launcher gives a rank 5 seconds after another rank's failure, and 30 after a signal.
    fn limits(self) -> (Duration, Duration) {
        let [wait, uploads] = match self {
            Status::Finished => [10, 60],
            Status::Failed => [3, 0],
            Status::Killed => [5, 5],
        };
        (Duration::from_secs(wait), Duration::from_secs(uploads))
    }
}

/// Value of a metric at a step.
#[derive(Clone, Debug, PartialEq)]
struct Point {
    key: String,
    value: f64,
    step: usize,
    /// Milliseconds since the Unix epoch.
    time: u64,
}

/// End of a run.
#[derive(Clone, Debug)]
struct End {
    status: Status,
    files: Vec<PathBuf>,
    /// Time at which points and status are given up.
    deadline: Instant,
}

/// What a run and the thread that sends it share.
#[derive(Default)]
struct Shared {
    /// Set once by the run; everything else is set by the thread.
    end: Option<End>,
    /// Address of the run's page.
    page: Option<String>,
    /// Number of points that the server has.
    points: usize,
    /// Whether the server has the final status.
    status: bool,
    /// Files that the server has.
    files: Vec<PathBuf>,
}

/// Sends a run to an MLflow server.
pub struct MlflowRun {
    uri: String,
    experiment: String,
    console: Console,
    set: EvaluatedSet,
    points: mpsc::SyncSender<Point>,
    /// Number of points, with those that are lost.
    received: AtomicUsize,
    shared: Arc<Mutex<Shared>>,
    /// The thread until the end of the run.
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl MlflowRun {
    /// Starts the thread that sends the run. `set` is evaluated after every epoch.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub fn start(server: Server, info: RunInfo, set: EvaluatedSet, console: Console) -> Result<Self> {
        let (uri, experiment) = (server.uri().to_owned(), info.experiment.clone());
        let shared = Arc::<Mutex<Shared>>::default();
        let (points, received) = mpsc::sync_channel(CAPACITY);
        let mut sender = Sender { server, console, points: received, shared: shared.clone(), warned: false };
        let thread = thread::Builder::new().name("mlflow".into()).spawn(move || sender.run(&info));
        let thread = Mutex::new(Some(thread.context("cannot start a thread")?));
        Ok(Self { uri, experiment, console, set, points, received: AtomicUsize::new(0), shared, thread })
    }

    /// Address of the server and name of the experiment, for display.
    pub fn destination(&self) -> String {
        format!("{}, experiment {}", self.uri, self.experiment)
    }

    /// Sends the remaining points, `status` and `files`. Only the first call has an effect.
    ///
    /// The wait is bounded. What is not sent is a warning.
    pub fn close(&self, status: Status, files: Vec<PathBuf>) {
        let Some(thread) = lock(&self.thread).take() else { return };
        let (wait, uploads) = status.limits();
        lock(&self.shared).end = Some(End { status, files: files.clone(), deadline: Instant::now() + wait });
        thread.thread().unpark();
        let await_thread = |limit: Duration| {
            let until = Instant::now() + limit + MARGIN;
            while !thread.is_finished() && Instant::now() < until {
                thread::sleep(POLL);
            }
        };
        await_thread(wait);
        if lock(&self.shared).status {
            await_thread(uploads);
        }
        let (sent, received) = (lock(&self.shared), self.received.load(Relaxed));
        let points = received.saturating_sub(sent.points);
        let points = (points > 0).then(|| format!("{points} of {received} points"));
        let status = (!sent.status).then(|| "the status".to_owned());
        let missing = files.iter().filter(|file| !sent.files.contains(file));
        let missing = missing.filter_map(|file| Some(file.file_name()?.to_string_lossy().into_owned()));
        let unsent: Vec<String> = points.into_iter().chain(status).chain(missing).collect();
        if !unsent.is_empty() {
            self.console.warn(&format!("MLflow server {}: not sent: {}", self.uri, unsent.join(", ")));
        }
        if let Some(page) = &sent.page {
            self.console.print(&format!("mlflow run    {page}"));
        }
    }
}

/// Milliseconds since the Unix epoch.
fn now() -> u64 {
    (process::now() * 1000.0) as u64
}

impl Observer for MlflowRun {
    fn step_done(&self, report: &StepReport) {
        log_step(self, report);
    }

    fn epoch_done(&self, report: &EpochReport) {
        for of in &report.train {
            self.scalar(&format!("train_epoch/{}", of.metric.name), report.step, of.value);
        }
        log_evaluation(self, self.set, report);
    }

    fn tested(&self, report: &EpochReport) {
        log_evaluation(self, EvaluatedSet::Test, report);
    }
}

impl Drop for MlflowRun {
    /// Ends a run that is not [closed](Self::close).
    fn drop(&mut self) {
        self.close(if thread::panicking() { Status::Failed } else { Status::Finished }, vec![]);
    }
}

impl ScalarSink for MlflowRun {
    fn scalar(&self, name: &str, step: usize, value: f64) {
        self.received.fetch_add(1, Relaxed);
        // Points that do not fit, or after the server has refused the run, are lost.
        let _ = self.points.try_send(Point { key: metric_name(name), value, step, time: now() });
    }
}

/// Sends the numeric metrics of a burn-train `Learner` to an MLflow server.
///
/// Names and steps are those of [`TensorBoardLogger`](crate::run::tensorboard::TensorBoardLogger). A thread sends the
/// metrics; a server that is slow or away does not delay training. The run ends when the logger is dropped, as
/// `FAILED` during a panic and as `FINISHED` otherwise.
///
/// [`Trainer`](crate::Trainer) uses [`MlflowRun`] as an [`Observer`] instead: a `MetricLogger` gets neither the
/// learning rate nor the step of a resumed run.
///
/// ```no_run
/// # use burn_ddp::run::mlflow::MlflowLogger;
/// # fn configure<M: burn::train::LearnerModel + 'static>(
/// #     training: burn::train::SupervisedTraining<M>,
/// # ) -> anyhow::Result<burn::train::SupervisedTraining<M>> {
/// let params = serde_json::json!({ "lr": 0.02, "batch_size": 48 });
/// let logger = MlflowLogger::create("http://localhost:5000", Some("curves"), "first run", &params)?;
/// let training = training.with_metric_logger(logger);
/// # Ok(training)
/// # }
/// ```
pub type MlflowLogger = MetricsLogger<MlflowRun>;

impl MlflowLogger {
    /// Starts a run of an experiment, which is the program's name by default.
    ///
    /// The fields of `params` are logged as parameters. Credentials are read from the environment, see [`Server`].
    ///
    /// # Errors
    /// If `uri` is not an HTTP address or contains credentials, or the thread cannot be started.
    pub fn create(uri: &str, experiment: Option<&str>, name: &str, params: &Value) -> Result<Self> {
        let info = RunInfo::new(experiment, name, params, None);
        let run = MlflowRun::start(Server::new(uri)?, info, EvaluatedSet::Valid, Console::new(true))?;
        Ok(Self::new(run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configurations_are_flattened_within_the_limits() {
        let long = "é".repeat(5000);
        let config = serde_json::json!({
            "lr": 0.05, "mode": "ddp", "none": null, "ids": [1, 2], "a": {"b": {"c": true}}, "top-k %": 1, "text": long,
        });
        let params = RunInfo::new(None, "run", &config, None).params;
        let expected =
            [("a.b.c", "true"), ("ids", "[1,2]"), ("lr", "0.05"), ("mode", "ddp"), ("top-k _", "1")];
        for (name, value) in expected {
            assert_eq!(params[name], value, "{name}");
        }
        assert_eq!((params.len(), params["text"].len()), (6, 6000));
    }
}
