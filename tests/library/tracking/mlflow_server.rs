//! A small MLflow server that records requests, and can be slow or fail.

use crate::http::{self, Request};
use serde_json::{Value, json};
use std::{
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// What the server does with requests.
#[derive(Clone, Copy, Default)]
pub struct Behaviour {
    /// Number of requests of a kind that are answered by an error first.
    pub failures: usize,
    /// Status of these errors.
    pub status: u16,
    /// Time before every answer.
    pub delay: Duration,
}

fn parsed(request: &Request) -> Value {
    serde_json::from_slice(&request.content).unwrap_or_default()
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    failed: usize,
}

pub struct Server {
    pub uri: String,
    state: Arc<Mutex<State>>,
    _server: http::Server,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Self {
        let state = Arc::<Mutex<State>>::default();
        let received = state.clone();
        let server = http::Server::start(move |request| {
            thread::sleep(behaviour.delay);
            let state = &mut *received.lock().expect("no panic");
            let (status, body) = if state.failed < behaviour.failures {
                state.failed += 1;
                // Servers may repeat what they were sent.
                let message = format!("refused {:?}", request.authorization);
                (behaviour.status, json!({"error_code": "SOME_ERROR", "message": message}))
            } else {
                state.requests.push(request.clone());
                answer(&request, &state.requests)
            };
            let body = body.to_string().into_bytes();
            Some((status, body.len(), body))
        });
        Self { uri: format!("http://{}", server.address), state, _server: server }
    }

    pub fn requests(&self) -> Vec<Request> {
        self.state.lock().expect("no panic").requests.clone()
    }

    /// Bodies of the requests to an endpoint.
    pub fn bodies(&self, endpoint: &str) -> Vec<Value> {
        let path = format!("/api/2.0/mlflow/{endpoint}");
        self.requests().iter().filter(|request| request.path == path).map(parsed).collect()
    }

    /// Points of all metrics, in the order of their arrival: name, step and value.
    pub fn points(&self) -> Vec<(String, u64, f64)> {
        let bodies = self.bodies("runs/log-batch");
        let metrics = bodies.iter().filter_map(|body| body["metrics"].as_array()).flatten();
        metrics
            .map(|metric| {
                let number = |name: &str| metric[name].as_f64().expect("a number");
                let key = metric["key"].as_str().expect("a name").to_owned();
                assert!(number("timestamp") > 1.7e12, "milliseconds: {metric}");
                (key, number("step") as u64, number("value"))
            })
            .collect()
    }

    /// Parameters of the run.
    pub fn params(&self) -> Vec<(String, String)> {
        let bodies = self.bodies("runs/log-batch");
        let params = bodies.iter().filter_map(|body| body["params"].as_array()).flatten();
        let text = |value: &Value| value.as_str().expect("text").to_owned();
        params.map(|param| (text(&param["key"]), text(&param["value"]))).collect()
    }

    /// Statuses in the order in which they were set.
    pub fn statuses(&self) -> Vec<String> {
        let bodies = self.bodies("runs/update");
        bodies.iter().map(|body| body["status"].as_str().expect("a status").to_owned()).collect()
    }

    /// Names of uploaded files with their sizes.
    pub fn files(&self) -> Vec<(String, usize)> {
        let requests = self.requests();
        let uploads = requests.iter().filter(|request| request.method == "PUT");
        let prefix = "/api/2.0/mlflow-artifacts/artifacts/7/run1/artifacts/";
        let name = |path: &str| path.strip_prefix(prefix).expect("the run's folder").to_owned();
        uploads.map(|request| (name(&request.path), request.content.len())).collect()
    }
}

/// Answers as MLflow does. The first experiment is created, later ones exist.
fn answer(request: &Request, requests: &[Request]) -> (u16, Value) {
    let missing = (404, json!({"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no such thing"}));
    let info = json!({
        "run_id": "run1", "lifecycle_stage": "active", "artifact_uri": "mlflow-artifacts:/7/run1/artifacts",
    });
    let endpoint = request.path.trim_start_matches("/api/2.0/mlflow/");
    let was_called = |path: &str| requests.iter().any(|request| request.path.ends_with(path));
    match endpoint.split('?').next().unwrap_or_default() {
        "experiments/get-by-name" if was_called("experiments/create") => {
            (200, json!({"experiment": {"experiment_id": "7"}}))
        }
        "experiments/get-by-name" => missing,
        "experiments/create" => (200, json!({"experiment_id": "7"})),
        "runs/create" => (200, json!({"run": {"info": info}})),
        "runs/get" if !was_called("runs/create") => missing,
        "runs/get" => {
            let logged = |kind: &'static str| {
                let batches = requests.iter().filter(|request| request.path.ends_with("runs/log-batch"));
                let bodies = batches.map(parsed);
                bodies.filter_map(|body| body[kind].as_array().cloned()).flatten().collect::<Vec<_>>()
            };
            let mut last = serde_json::Map::new();
            for metric in logged("metrics") {
                last.insert(metric["key"].as_str().expect("a name").to_owned(), metric);
            }
            let metrics: Vec<Value> = last.into_iter().map(|(_, metric)| metric).collect();
            let data = json!({"metrics": metrics, "params": logged("params")});
            (200, json!({"run": {"info": info, "data": data}}))
        }
        _ => (200, json!({})),
    }
}
