//! A run on an MLflow server: opening, logging and ending it.

use super::{
    RunInfo,
    buffer::{Point, Status},
    client::{Client, Failure},
};
use crate::process::atomic_file;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

/// File of a run folder that names its MLflow run.
pub const RUN_FILE: &str = "mlflow.json";

/// Parameters per request. MLflow accepts 100, and 1 MB; a parameter may have 6000 bytes.
const PARAMS: usize = 50;

/// Content of [`RUN_FILE`].
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
    params: BTreeMap<String, String>,
    /// Last step of each metric on the server.
    last: HashMap<String, usize>,
}

/// Returns a text field of an answer.
fn text(answer: &Value, pointer: &str) -> Result<String, Failure> {
    let found = answer.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
    let reason = || format!("the answer has no {pointer}; check that the URI is that of an MLflow server");
    found.ok_or_else(|| Failure::Refused { code: String::new(), reason: reason() })
}

impl RemoteRun {
    /// Continues the run that the run folder names, or creates a run.
    pub fn open(client: &Client, info: &RunInfo, time: u64, timeout: Duration) -> Result<Self, Failure> {
        let path = info.folder.as_ref().map(|folder| folder.join(RUN_FILE));
        let stored = path.as_ref().and_then(|path| fs::read(path).ok());
        let stored: Option<Stored> = stored.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if let Some(stored) = stored.filter(|stored| stored.tracking_uri == client.server.uri()) {
            match Self::continued(client, info, stored, timeout) {
                Ok(Some(run)) => return Ok(run),
                Ok(None) => {}
                Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
                Err(failure) => return Err(failure),
            }
        }
        let run = Self::created(client, info, time, timeout)?;
        if let Some(path) = path {
            let written = serde_json::to_vec_pretty(&run.stored)
                .map_err(Into::into)
                .and_then(|bytes| atomic_file::write(&path, &bytes));
            // Without the file, a resumed run is a new one in MLflow.
            written.map_err(|error| Failure::Refused {
                code: String::new(),
                reason: format!("cannot write {}: {error}", path.display()),
            })?;
        }
        Ok(run)
    }

    /// Sets a stored run to running. Returns `None` if it was deleted.
    fn continued(
        client: &Client,
        info: &RunInfo,
        stored: Stored,
        timeout: Duration,
    ) -> Result<Option<Self>, Failure> {
        let answer = client.get("runs/get", ("run_id", &stored.run_id), timeout)?;
        if answer.pointer("/run/info/lifecycle_stage").is_some_and(|stage| stage != "active") {
            return Ok(None);
        }
        let list = |name: &str| {
            let list = answer.pointer(&format!("/run/data/{name}")).and_then(Value::as_array);
            list.cloned().unwrap_or_default().into_iter()
        };
        let key = |entry: &Value| Some(entry.get("key")?.as_str()?.to_owned());
        // 64-bit integers are strings in some versions' JSON.
        let step = |entry: &Value| {
            let step = entry.get("step").cloned().unwrap_or_default();
            step.as_u64().or_else(|| step.as_str()?.parse().ok()).unwrap_or(0) as usize
        };
        let last = list("metrics").filter_map(|metric| Some((key(&metric)?, step(&metric)))).collect();
        // MLflow does not change parameters.
        let mut params = info.params.clone();
        list("params").filter_map(|param| key(&param)).for_each(|name| drop(params.remove(&name)));
        client.post("runs/update", &json!({"run_id": stored.run_id, "status": "RUNNING"}), timeout)?;
        let artifact_uri = text(&answer, "/run/info/artifact_uri")?;
        Ok(Some(Self { stored, artifact_uri, params, last }))
    }

    fn created(client: &Client, info: &RunInfo, time: u64, timeout: Duration) -> Result<Self, Failure> {
        let experiment_id = experiment(client, &info.experiment, timeout)?;
        let tags: Vec<Value> =
            info.tags.iter().map(|(key, value)| json!({"key": key, "value": value})).collect();
        let run =
            json!({"experiment_id": experiment_id, "run_name": info.name, "start_time": time, "tags": tags});
        let answer = client.post("runs/create", &run, timeout)?;
        let stored = Stored {
            tracking_uri: client.server.uri().into(),
            experiment_id,
            run_id: text(&answer, "/run/info/run_id")?,
        };
        let artifact_uri = text(&answer, "/run/info/artifact_uri")?;
        Ok(Self { stored, artifact_uri, params: info.params.clone(), last: HashMap::new() })
    }

    /// Logs the parameters that the server does not have.
    pub fn log_params(&mut self, client: &Client, timeout: Duration) -> Result<(), Failure> {
        while !self.params.is_empty() {
            let names: Vec<String> = self.params.keys().take(PARAMS).cloned().collect();
            let list: Vec<Value> =
                names.iter().map(|name| json!({"key": name, "value": self.params[name]})).collect();
            let body = json!({"run_id": self.stored.run_id, "params": list});
            match client.post("runs/log-batch", &body, timeout) {
                Ok(_) => names.iter().for_each(|name| drop(self.params.remove(name))),
                Err(failure @ Failure::Temporary(_)) => return Err(failure),
                // Refused once, refused again.
                Err(failure) => {
                    self.params.clear();
                    return Err(failure);
                }
            }
        }
        Ok(())
    }

    /// Logs points, without those that the server already has.
    pub fn log(&self, client: &Client, points: &[Point], timeout: Duration) -> Result<(), Failure> {
        let is_new = |point: &&Point| self.last.get(&point.key).is_none_or(|last| point.step > *last);
        let metrics: Vec<Value> = points.iter().filter(is_new).map(metric).collect();
        if metrics.is_empty() {
            return Ok(());
        }
        let body = json!({"run_id": self.stored.run_id, "metrics": metrics});
        client.post("runs/log-batch", &body, timeout).map(drop)
    }

    /// Sets the final status.
    pub fn end(&self, client: &Client, status: Status, time: u64, timeout: Duration) -> Result<(), Failure> {
        let body = json!({"run_id": self.stored.run_id, "status": status.name(), "end_time": time});
        client.post("runs/update", &body, timeout).map(drop)
    }

    /// Uploads a file as an artifact of the same name.
    pub fn upload(&self, client: &Client, file: &PathBuf, timeout: Duration) -> Result<(), Failure> {
        let Some(folder) = self.artifact_uri.strip_prefix("mlflow-artifacts:/").map(|p| p.trim_matches('/'))
        else {
            let scheme = self.artifact_uri.split(':').next().unwrap_or_default();
            let reason = format!(
                "artifacts are in a store (`{scheme}`) that the server does not serve; start it with --serve-artifacts"
            );
            return Err(Failure::Refused { code: String::new(), reason });
        };
        let name = Path::new(file).file_name().unwrap_or_default().to_string_lossy();
        client.upload(&format!("{folder}/{name}"), file, timeout)
    }

    /// Address of the run's page.
    pub fn page(&self) -> String {
        let Stored { tracking_uri, experiment_id, run_id } = &self.stored;
        format!("{tracking_uri}/#/experiments/{experiment_id}/runs/{run_id}")
    }
}

/// Finds or creates an experiment.
fn experiment(client: &Client, name: &str, timeout: Duration) -> Result<String, Failure> {
    let find = || {
        let answer = client.get("experiments/get-by-name", ("experiment_name", name), timeout)?;
        text(&answer, "/experiment/experiment_id")
    };
    match find() {
        Err(failure) if failure.has_code("RESOURCE_DOES_NOT_EXIST") => {}
        found => return found,
    }
    match client.post("experiments/create", &json!({"name": name}), timeout) {
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
