//! A small MLflow server that records requests, and can be slow or fail.

use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
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

/// A request: method, path, authorization and body.
#[derive(Clone, Debug)]
pub struct Received {
    pub method: String,
    pub path: String,
    pub authorization: Option<String>,
    pub content: Vec<u8>,
}

impl Received {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.content).unwrap_or_default()
    }
}

#[derive(Default)]
struct State {
    requests: Vec<Received>,
    failed: usize,
}

pub struct Server {
    pub uri: String,
    state: Arc<Mutex<State>>,
    over: Arc<AtomicBool>,
    address: std::net::SocketAddr,
}

impl Server {
    pub fn start(behaviour: Behaviour) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (state, over) = (Arc::<Mutex<State>>::default(), Arc::<AtomicBool>::default());
        let server =
            Self { uri: format!("http://{address}"), state: state.clone(), over: over.clone(), address };
        thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let state = state.clone();
                thread::spawn(move || serve(stream.expect("a connection"), &state, behaviour));
            }
        });
        server
    }

    pub fn requests(&self) -> Vec<Received> {
        self.state.lock().expect("no panic").requests.clone()
    }

    /// Bodies of the requests to an endpoint.
    pub fn bodies(&self, endpoint: &str) -> Vec<Value> {
        let path = format!("/api/2.0/mlflow/{endpoint}");
        self.requests().iter().filter(|request| request.path == path).map(Received::json).collect()
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

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
    }
}

/// Reads a request, or `None` at the end of the connection.
fn receive(reader: &mut impl BufRead) -> Option<Received> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
    let mut parts = line.split_whitespace().map(str::to_owned);
    let (method, path) = (parts.next()?, parts.next()?);
    let (mut length, mut authorization) = (0, None);
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim().split_once(": ") else { break };
        match name.to_lowercase().as_str() {
            "content-length" => length = value.parse().expect("a length"),
            "authorization" => authorization = Some(value.to_owned()),
            "transfer-encoding" => panic!("uploads have a length"),
            _ => {}
        }
    }
    let mut content = vec![0; length];
    reader.read_exact(&mut content).ok()?;
    Some(Received { method, path, authorization, content })
}

fn serve(stream: TcpStream, state: &Mutex<State>, behaviour: Behaviour) {
    let mut writer = stream.try_clone().expect("a socket");
    let mut reader = BufReader::new(stream);
    while let Some(request) = receive(&mut reader) {
        thread::sleep(behaviour.delay);
        let (status, body) = {
            let mut state = state.lock().expect("no panic");
            if state.failed < behaviour.failures {
                state.failed += 1;
                // Servers may repeat what they were sent.
                let message = format!("refused {:?}", request.authorization);
                (behaviour.status, json!({"error_code": "SOME_ERROR", "message": message}))
            } else {
                state.requests.push(request.clone());
                answer(&request, &state.requests)
            }
        };
        let body = body.to_string();
        let text = format!(
            "HTTP/1.1 {status} Status\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        if writer.write_all(text.as_bytes()).is_err() {
            return;
        }
    }
}

/// Answers as MLflow does. The first experiment is created, later ones exist.
fn answer(request: &Received, requests: &[Received]) -> (u16, Value) {
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
                let bodies = batches.map(Received::json);
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
