//! Thread that sends a run to an MLflow server.

use super::{
    super::tracker::Status,
    End, Point, RunInfo,
    client::{Failure, Server},
    now,
};
use crate::process::{atomic_file, console::Console, lock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

/// MLflow's limit for the metrics of a request.
const BATCH: usize = 1000;
/// Parameters per request. MLflow accepts 100, and 1 MB; a parameter may have 6000 bytes.
const PARAMS: usize = 50;
/// Time in which points are collected for a request.
const INTERVAL: Duration = Duration::from_secs(2);
/// Limit for a request during training. A server that is started may take long for its first answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// What the server has of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Sent {
    /// Address of the run's page.
    pub page: Option<String>,
    /// Number of points.
    pub points: usize,
    /// Whether it has the final status.
    pub status: bool,
    pub files: Vec<PathBuf>,
}

/// Sends points, status and files in the order in which they arrive.
pub(super) struct Sender {
    pub server: Server,
    pub console: Console,
    pub points: Receiver<Point>,
    pub end: Receiver<End>,
    pub sent: Arc<Mutex<Sent>>,
    /// End of the run, once it is known.
    pub ended: Option<End>,
    pub warned: bool,
}

impl Sender {
    /// Sends points until the end of the run, then its status. Returns the run if it exists on the server.
    pub fn send(&mut self, info: &RunInfo) -> Option<RemoteRun> {
        let began = now();
        let run = self.retry(|server, timeout| RemoteRun::open(server, info, began, timeout))?;
        lock(&self.sent).page = Some(run.page());
        for params in run.params.chunks(PARAMS) {
            let body = json!({"run_id": run.stored.run_id, "params": params});
            // Refused once, refused again.
            if self.retry(|server, timeout| server.post("runs/log-batch", &body, timeout)).is_none() {
                break;
            }
        }
        loop {
            let is_over = self.ended.is_some();
            let points: Vec<Point> = self.points.try_iter().take(BATCH).collect();
            if points.is_empty() && is_over {
                break;
            }
            if self.retry(|server, timeout| run.log(server, &points, timeout)).is_some() {
                lock(&self.sent).points += points.len();
            }
            self.timeout()?;
            if points.len() < BATCH && !is_over {
                self.wait(INTERVAL);
            }
        }
        let status = self.ended.as_ref().map_or(Status::Failed, |end| end.status);
        let body = json!({"run_id": run.stored.run_id, "status": status.name(), "end_time": now()});
        let status = self.retry(|server, timeout| server.post("runs/update", &body, timeout));
        lock(&self.sent).status = status.is_some();
        Some(run)
    }

    /// Uploads the files of the end.
    pub fn upload(&mut self, run: &RemoteRun) {
        let Some(End { status, files, .. }) = self.ended.clone() else { return };
        let until = Instant::now() + status.limits().1;
        for file in files {
            let left = until.saturating_duration_since(Instant::now());
            let uploaded = match left.is_zero() {
                true => Err(Failure::Temporary("timeout: uploads".into())),
                false => run.upload(&self.server, &file, left),
            };
            match uploaded {
                Ok(()) => lock(&self.sent).files.push(file),
                Err(failure) => _ = self.warn(&failure),
            }
        }
    }

    /// Repeats a request until it succeeds. Returns `None` if the server refuses it, or after the deadline.
    fn retry<T>(&mut self, request: impl Fn(&Server, Duration) -> Result<T, Failure>) -> Option<T> {
        let mut pause = FIRST_RETRY;
        loop {
            match request(&self.server, self.timeout()?) {
                Ok(answer) => return Some(answer),
                Err(failure) => self.warn(&failure).then_some(())?,
            }
            match self.ended {
                None => self.wait(pause),
                Some(_) => thread::sleep(FIRST_RETRY.min(self.timeout()?)),
            }
            pause = LAST_RETRY.min(pause * 2);
        }
    }

    /// Limit for the next request, or `None` after the deadline.
    fn timeout(&self) -> Option<Duration> {
        let Some(end) = &self.ended else { return Some(REQUEST_TIMEOUT) };
        let left = end.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Waits for `time`, or until the end of the run.
    fn wait(&mut self, time: Duration) {
        match self.end.recv_timeout(time) {
            Ok(end) => self.ended = Some(end),
            Err(RecvTimeoutError::Timeout) => {}
            // The end is always sent first.
            Err(RecvTimeoutError::Disconnected) => thread::sleep(time),
        }
    }

    /// Prints the first failure. Returns whether a later attempt may succeed.
    fn warn(&mut self, failure: &Failure) -> bool {
        let (Failure::Temporary(reason) | Failure::Refused { reason, .. }) = failure;
        if !std::mem::replace(&mut self.warned, true) {
            let uri = self.server.uri();
            match self.ended {
                None => self.console.warn(&format!(
                    "MLflow server {uri}: {reason}; training continues without waiting for it"
                )),
                Some(_) => self.console.warn(&format!("MLflow server {uri}: {reason}")),
            }
        }
        matches!(failure, Failure::Temporary(_))
    }
}

/// Content of [`RUN_FILE`](super::RUN_FILE).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Stored {
    tracking_uri: String,
    experiment_id: String,
    run_id: String,
}

/// A run that exists on the server.
pub(super) struct RemoteRun {
    stored: Stored,
    /// `mlflow-artifacts:/PATH` if the server stores artifacts itself.
    artifact_uri: String,
    /// Parameters that the server does not have.
    params: Vec<Value>,
    /// Last step of each metric on the server.
    last: HashMap<String, usize>,
}

/// Returns a text field of an answer.
fn text(answer: &Value, pointer: &str) -> Result<String, Failure> {
    let found = answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    found.ok_or_else(|| {
        Failure::refused(format!(
            "the answer has no {pointer}; check that the URI is that of an MLflow server"
        ))
    })
}

fn key(entry: &Value) -> Option<String> {
    Some(entry.get("key")?.as_str()?.to_owned())
}

/// Tags or parameters as MLflow's JSON.
fn entries<'a>(entries: impl IntoIterator<Item = (&'a String, &'a String)>) -> Vec<Value> {
    entries.into_iter().map(|(key, value)| json!({"key": key, "value": value})).collect()
}

impl RemoteRun {
    /// Continues the run that the run folder names, or creates a run.
    fn open(server: &Server, info: &RunInfo, time: u64, timeout: Duration) -> Result<Self, Failure> {
        let path = info.folder.as_ref().map(|folder| folder.join(super::RUN_FILE));
        let stored = path.as_ref().and_then(|path| fs::read(path).ok());
        let stored: Option<Stored> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored.tracking_uri == server.uri()) {
            match Self::continued(server, info, stored, timeout) {
                Ok(Some(run)) => return Ok(run),
                Ok(None) => {}
                Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
                Err(failure) => return Err(failure),
            }
        }
        let run = Self::created(server, info, time, timeout)?;
        if let Some(path) = path {
            let bytes = serde_json::to_vec_pretty(&run.stored).unwrap_or_default();
            // Without the file, a resumed run is a new one in MLflow.
            atomic_file::write(&path, &bytes).map_err(|error| Failure::refused(format!("{error:#}")))?;
        }
        Ok(run)
    }

    /// Sets a stored run to running. Returns `None` if it was deleted.
    fn continued(
        server: &Server,
        info: &RunInfo,
        stored: Stored,
        timeout: Duration,
    ) -> Result<Option<Self>, Failure> {
        let answer = server.get("runs/get", ("run_id", &stored.run_id), timeout)?;
        if answer.pointer("/run/info/lifecycle_stage").is_some_and(|stage| stage != "active") {
            return Ok(None);
        }
        let list = |name: &str| {
            let list = answer.pointer(&format!("/run/data/{name}")).and_then(Value::as_array);
            list.into_iter().flatten()
        };
        // 64-bit integers are strings in some versions' JSON.
        let step = |entry: &Value| {
            let step = entry.get("step").cloned().unwrap_or_default();
            step.as_u64().or_else(|| step.as_str()?.parse().ok()).unwrap_or(0) as usize
        };
        let last = list("metrics").filter_map(|metric| Some((key(metric)?, step(metric)))).collect();
        // MLflow does not change parameters.
        let known: Vec<String> = list("params").filter_map(key).collect();
        let params = entries(info.params.iter().filter(|(name, _)| !known.contains(name)));
        server.post("runs/update", &json!({"run_id": stored.run_id, "status": "RUNNING"}), timeout)?;
        let artifact_uri = text(&answer, "/run/info/artifact_uri")?;
        Ok(Some(Self { stored, artifact_uri, params, last }))
    }

    fn created(server: &Server, info: &RunInfo, time: u64, timeout: Duration) -> Result<Self, Failure> {
        let experiment_id = experiment(server, &info.experiment, timeout)?;
        let run = json!({
            "experiment_id": experiment_id, "run_name": info.name, "start_time": time, "tags": entries(&info.tags),
        });
        let answer = server.post("runs/create", &run, timeout)?;
        let run_id = text(&answer, "/run/info/run_id")?;
        Ok(Self {
            stored: Stored { tracking_uri: server.uri().into(), experiment_id, run_id },
            artifact_uri: text(&answer, "/run/info/artifact_uri")?,
            params: entries(&info.params),
            last: HashMap::new(),
        })
    }

    /// Logs points, without those that the server already has.
    fn log(&self, server: &Server, points: &[Point], timeout: Duration) -> Result<(), Failure> {
        let is_new = |point: &&Point| self.last.get(&point.key).is_none_or(|last| point.step > *last);
        let metrics: Vec<Value> = points.iter().filter(is_new).map(metric).collect();
        if metrics.is_empty() {
            return Ok(());
        }
        let body = json!({"run_id": self.stored.run_id, "metrics": metrics});
        server.post("runs/log-batch", &body, timeout).map(drop)
    }

    /// Uploads a file as an artifact of the same name.
    fn upload(&self, server: &Server, file: &Path, timeout: Duration) -> Result<(), Failure> {
        let Some(folder) = self.artifact_uri.strip_prefix("mlflow-artifacts:/") else {
            let scheme = self.artifact_uri.split(':').next().unwrap_or_default();
            return Err(Failure::refused(format!(
                "artifacts are in a store (`{scheme}`) that the server does not serve; start it with --serve-artifacts"
            )));
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        server.upload(&format!("{}/{name}", folder.trim_matches('/')), file, timeout)
    }

    /// Address of the run's page.
    fn page(&self) -> String {
        let Stored { tracking_uri, experiment_id, run_id } = &self.stored;
        format!("{tracking_uri}/#/experiments/{experiment_id}/runs/{run_id}")
    }
}

/// Finds or creates an experiment.
fn experiment(server: &Server, name: &str, timeout: Duration) -> Result<String, Failure> {
    let find = || {
        let answer = server.get("experiments/get-by-name", ("experiment_name", name), timeout)?;
        text(&answer, "/experiment/experiment_id")
    };
    match find() {
        Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
        found => return found,
    }
    match server.post("experiments/create", &json!({"name": name}), timeout) {
        // Another run has created it.
        Err(failure) if failure.has_code("RESOURCE_ALREADY_EXISTS") => find(),
        answer => text(&answer?, "/experiment_id"),
    }
}

/// A point in MLflow's JSON, in which numbers that are not finite are strings.
fn metric(point: &Point) -> Value {
    let value = match point.value {
        value if value.is_nan() => json!("NaN"),
        value if value.is_infinite() => json!(if value > 0.0 { "Infinity" } else { "-Infinity" }),
        value => json!(value),
    };
    json!({"key": point.key, "value": value, "timestamp": point.time, "step": point.step})
}
