//! Thread that sends a run to an MLflow server.

use super::{
    super::tracker::Status,
    End, Point, RunInfo, Shared,
    client::{Failure, REQUEST_TIMEOUT, Server},
    now,
};
use crate::process::{atomic_file, console::Console, lock};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    fs,
    path::Path,
    sync::{Arc, Mutex, mpsc::Receiver},
    thread,
    time::{Duration, Instant},
};

/// MLflow's limit for the metrics of a request.
const BATCH: usize = 1000;
/// Parameters per request. MLflow accepts 100, and 1 MB; a parameter may have 6000 bytes.
const PARAMS: usize = 50;
/// Time in which points are collected for a request.
const INTERVAL: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(500);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Sends points, status and files in the order in which they arrive.
pub(super) struct Sender {
    pub server: Server,
    pub console: Console,
    pub points: Receiver<Point>,
    pub shared: Arc<Mutex<Shared>>,
    pub warned: bool,
}

impl Sender {
    /// Sends the run until its end, and then its files. Returns early if the server refuses it or time runs out.
    pub fn run(&mut self, info: &RunInfo) {
        if let Some(run) = self.send(info) {
            self.upload(&run);
        }
    }

    /// Sends points until the end of the run, then its status. Returns the run if it exists on the server.
    fn send(&mut self, info: &RunInfo) -> Option<RemoteRun> {
        let began = now();
        let run = self.retry(|server| RemoteRun::open(server, info, began))?;
        lock(&self.shared).page = Some(run.page());
        for params in run.params.chunks(PARAMS) {
            let body = json!({"run_id": run.stored.run_id, "params": params});
            // Refused once, refused again.
            if self.retry(|server| server.post("runs/log-batch", &body)).is_none() {
                break;
            }
        }
        loop {
            // Before the points are taken: those before the end are then among them.
            let is_over = self.end().is_some();
            let points: Vec<Point> = self.points.try_iter().take(BATCH).collect();
            if points.is_empty() && is_over {
                break;
            }
            if self.retry(|server| run.log(server, &points)).is_some() {
                lock(&self.shared).points += points.len();
            }
            self.timeout()?;
            if points.len() < BATCH && !is_over {
                thread::park_timeout(INTERVAL);
            }
        }
        let status = self.end().map_or(Status::Failed, |end| end.status);
        let body = json!({"run_id": run.stored.run_id, "status": status.name(), "end_time": now()});
        let status = self.retry(|server| server.post("runs/update", &body));
        lock(&self.shared).status = status.is_some();
        Some(run)
    }

    /// Uploads the files of the end.
    fn upload(&mut self, run: &RemoteRun) {
        let Some(End { status, files, .. }) = self.end() else { return };
        let until = Instant::now() + status.limits().1;
        for file in files {
            let left = until.saturating_duration_since(Instant::now());
            let uploaded = match left.is_zero() {
                true => Err(Failure::Temporary("timeout: uploads".into())),
                false => run.upload(&self.server.within(left), &file),
            };
            match uploaded {
                Ok(()) => lock(&self.shared).files.push(file),
                Err(failure) => _ = self.warn(&failure),
            }
        }
    }

    /// Repeats a request until it succeeds. Returns `None` if the server refuses it, or after the deadline.
    fn retry<T>(&mut self, request: impl Fn(&Server) -> Result<T, Failure>) -> Option<T> {
        let mut pause = FIRST_RETRY;
        loop {
            match request(&self.server.within(self.timeout()?)) {
                Ok(answer) => return Some(answer),
                Err(failure) => self.warn(&failure).then_some(())?,
            }
            // The end of the run ends a pause.
            thread::park_timeout(if self.end().is_some() { FIRST_RETRY.min(self.timeout()?) } else { pause });
            pause = LAST_RETRY.min(pause * 2);
        }
    }

    /// End of the run, once it is known.
    fn end(&self) -> Option<End> {
        lock(&self.shared).end.clone()
    }

    /// Limit for the next request, or `None` after the deadline.
    fn timeout(&self) -> Option<Duration> {
        let Some(end) = self.end() else { return Some(REQUEST_TIMEOUT) };
        let left = end.deadline.saturating_duration_since(Instant::now());
        (!left.is_zero()).then_some(left)
    }

    /// Prints the first failure. Returns whether a later attempt may succeed.
    fn warn(&mut self, failure: &Failure) -> bool {
        let (Failure::Temporary(reason) | Failure::Refused { reason, .. }) = failure;
        if !std::mem::replace(&mut self.warned, true) {
            let uri = self.server.uri();
            match self.end() {
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
    fn open(server: &Server, info: &RunInfo, time: u64) -> Result<Self, Failure> {
        let path = info.folder.as_ref().map(|folder| folder.join(super::RUN_FILE));
        let stored = path.as_ref().and_then(|path| fs::read(path).ok());
        let stored: Option<Stored> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored.tracking_uri == server.uri()) {
            match Self::continued(server, info, stored) {
                Ok(Some(run)) => return Ok(run),
                Ok(None) => {}
                Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
                Err(failure) => return Err(failure),
            }
        }
        let run = Self::created(server, info, time)?;
        if let Some(path) = path {
            let bytes = serde_json::to_vec_pretty(&run.stored).unwrap_or_default();
            // Without the file, a resumed run is a new one in MLflow.
            atomic_file::write(&path, &bytes).map_err(|error| Failure::refused(format!("{error:#}")))?;
        }
        Ok(run)
    }

    /// Sets a stored run to running. Returns `None` if it was deleted.
    fn continued(server: &Server, info: &RunInfo, stored: Stored) -> Result<Option<Self>, Failure> {
        let answer = server.get("runs/get", "run_id", &stored.run_id)?;
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
        server.post("runs/update", &json!({"run_id": stored.run_id, "status": "RUNNING"}))?;
        let artifact_uri = text(&answer, "/run/info/artifact_uri")?;
        Ok(Some(Self { stored, artifact_uri, params, last }))
    }

    fn created(server: &Server, info: &RunInfo, time: u64) -> Result<Self, Failure> {
        let experiment_id = experiment(server, &info.experiment)?;
        let run = json!({
            "experiment_id": experiment_id, "run_name": info.name, "start_time": time, "tags": entries(&info.tags),
        });
        let answer = server.post("runs/create", &run)?;
        let run_id = text(&answer, "/run/info/run_id")?;
        Ok(Self {
            stored: Stored { tracking_uri: server.uri().into(), experiment_id, run_id },
            artifact_uri: text(&answer, "/run/info/artifact_uri")?,
            params: entries(&info.params),
            last: HashMap::new(),
        })
    }

    /// Logs points, without those that the server already has.
    fn log(&self, server: &Server, points: &[Point]) -> Result<(), Failure> {
        let is_new = |point: &&Point| self.last.get(&point.key).is_none_or(|last| point.step > *last);
        let metrics: Vec<Value> = points.iter().filter(is_new).map(metric).collect();
        if metrics.is_empty() {
            return Ok(());
        }
        let body = json!({"run_id": self.stored.run_id, "metrics": metrics});
        server.post("runs/log-batch", &body).map(drop)
    }

    /// Uploads a file as an artifact of the same name.
    fn upload(&self, server: &Server, file: &Path) -> Result<(), Failure> {
        let Some(folder) = self.artifact_uri.strip_prefix("mlflow-artifacts:/") else {
            let scheme = self.artifact_uri.split(':').next().unwrap_or_default();
            return Err(Failure::refused(format!(
                "artifacts are in a store (`{scheme}`) that the server does not serve; start it with --serve-artifacts"
            )));
        };
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        server.upload(&format!("{}/{name}", folder.trim_matches('/')), file)
    }

    /// Address of the run's page.
    fn page(&self) -> String {
        let Stored { tracking_uri, experiment_id, run_id } = &self.stored;
        format!("{tracking_uri}/#/experiments/{experiment_id}/runs/{run_id}")
    }
}

/// Finds or creates an experiment.
fn experiment(server: &Server, name: &str) -> Result<String, Failure> {
    let find = || {
        let answer = server.get("experiments/get-by-name", "experiment_name", name)?;
        text(&answer, "/experiment/experiment_id")
    };
    match find() {
        Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
        found => return found,
    }
    match server.post("experiments/create", &json!({"name": name})) {
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
