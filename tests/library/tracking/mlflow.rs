//! MLflow tracking: what a server receives, and what a run does without one.

use super::mlflow_server::{Behaviour, Server};
use crate::common::{
    self, Outcome, Run, example_command, finish,
    launched::{signal, wait_within},
    run_example,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// 8 steps per epoch with two ranks.
const RUN: &str = "--dataset subset --train-limit 256 --eval-limit 50 --batch-size 16 --threads 1 \
                   --device cpu --nproc-per-node 2 --progress plain";

/// Trains with the flags [`RUN`], with variables in the environment.
fn train(run: &Run, flags: &str, variables: &[(&str, &str)]) -> Outcome {
    let path = run.path.display();
    let mut program = example_command("mnist_ddp", &format!("{RUN} --run-dir {path} {flags}"));
    for name in ["MLFLOW_TRACKING_TOKEN", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"] {
        program.env_remove(name);
    }
    program.envs(variables.iter().copied());
    finish(program.spawn().expect("the program was built"))
}

/// The points of a metric: step and value.
fn points_of(server: &Server, name: &str) -> Vec<(u64, f64)> {
    server.points().into_iter().filter(|point| point.0 == name).map(|point| (point.1, point.2)).collect()
}

fn values_of(server: &Server, name: &str) -> Vec<f64> {
    points_of(server, name).into_iter().map(|point| point.1).collect()
}

/// Panics if a file below `folder` contains `secret`.
fn assert_absent(folder: &Path, secret: &str) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            assert_absent(&path, secret);
        } else {
            let bytes = fs::read(&path).expect("a file");
            let found = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!found, "{} contains {secret}", path.display());
        }
    }
}

#[test]
fn a_run_arrives_as_in_its_tables() {
    let (server, run, untracked) = (Server::start(Behaviour::default()), Run::new(), Run::new());
    let flags = format!("--epochs 2 --mlflow {}/ --mlflow-experiment digits", server.uri);
    let outcome = train(&run, &flags, &[("MLFLOW_TRACKING_TOKEN", "hunter2")]).succeeded();
    assert_eq!(outcome.stderr, "", "no warning");
    assert!(outcome.stdout.contains(&format!("{}/#/experiments/7/runs/run1", server.uri)), "{outcome:?}");
    train(&untracked, "--epochs 2", &[]).succeeded();
    assert_eq!(run.digest(), untracked.digest(), "tracking does not change the result");

    for (name, table, column) in [
        ("train/loss", "steps.csv", "loss"),
        ("train/lr", "steps.csv", "lr"),
        ("train/samples_per_second", "steps.csv", "samples_per_second"),
        ("train_epoch/loss", "epochs.csv", "train_loss"),
        ("train_epoch/accuracy", "epochs.csv", "train_accuracy"),
        ("test/loss", "epochs.csv", "test_loss"),
        ("test/accuracy", "epochs.csv", "test_accuracy"),
    ] {
        assert_eq!(values_of(&server, name), run.column(table, column), "{name}");
    }
    let steps = |name: &str| points_of(&server, name).iter().map(|point| point.0).collect::<Vec<_>>();
    assert_eq!((steps("train/loss"), steps("test/loss")), ((1..=16).collect(), vec![8, 16]));
    for body in server.bodies("runs/log-batch") {
        let count = |kind: &str| body[kind].as_array().map_or(0, Vec::len);
        assert!(count("metrics") <= 1000 && count("params") <= 100 && body.to_string().len() < 1_000_000);
        assert_eq!(body["run_id"], "run1");
    }

    let params: BTreeMap<String, String> = server.params().into_iter().collect();
    for (name, value) in [("lr", "0.05"), ("epochs", "2.0"), ("world_size", "2"), ("dataset", "subset")] {
        assert_eq!(
            params.get(name).map(|v| v.trim_end_matches(".0")),
            Some(value.trim_end_matches(".0")),
            "{params:?}"
        );
    }
    let [created] = &server.bodies("runs/create")[..] else { panic!("one run, created by rank 0") };
    assert_eq!((&created["run_name"], &created["experiment_id"]), (&"run".into(), &"7".into()));
    assert_eq!(server.bodies("experiments/create"), [serde_json::json!({"name": "digits"})]);
    assert_eq!(server.statuses(), ["FINISHED"]);

    let files: BTreeMap<String, usize> = server.files().into_iter().collect();
    let expected = ["config.json", "confusion_matrix.csv", "model.bpk", "report.html", "summary.json"];
    assert_eq!(files.keys().collect::<Vec<_>>(), expected);
    for (name, size) in files {
        assert_eq!(fs::metadata(run.path.join(&name)).expect("a file").len(), size as u64, "{name}");
    }
    for request in server.requests() {
        assert_eq!(request.authorization.as_deref(), Some("Bearer hunter2"));
    }
    assert_absent(&run.path, "hunter2");
    assert!(!run.json("config.json").to_string().contains("mlflow"), "the result does not depend on it");
}

#[test]
fn metrics_and_callbacks_of_any_model_arrive() {
    let (server, run) = (Server::start(Behaviour::default()), Run::new());
    let flags = format!("--device cpu --epochs 2 --mlflow {} --run-dir {}", server.uri, run.path.display());
    run_example("regression", &flags).succeeded();
    for (name, column) in [("test/mae", "test_mae"), ("test/max_error", "test_max_error")] {
        assert_eq!(values_of(&server, name), run.column("epochs.csv", column), "{name}");
    }
    assert_eq!(values_of(&server, "test/accuracy"), [0.0; 0]);
    assert!(server.params().iter().all(|param| param.0 != "metrics"), "{:?}", server.params());
}

#[test]
fn a_resumed_run_continues_without_repeated_steps() {
    let (server, run) = (Server::start(Behaviour::default()), Run::new());
    let flags = format!("--mlflow {}", server.uri);
    train(&run, &format!("{flags} --max-steps 6 --save-every 2 --keep-last 9"), &[]).succeeded();
    assert_eq!(server.statuses(), ["FINISHED"]);
    let path = run.path.join("checkpoints/step-000002");
    let outcome = common::train(&format!("{RUN} {flags} --resume {}", path.display())).succeeded();
    assert_eq!(outcome.stderr, "");
    assert_eq!(server.bodies("runs/create").len(), 1);
    let steps: Vec<u64> = points_of(&server, "train/loss").iter().map(|point| point.0).collect();
    assert_eq!(steps, (1..=8).collect::<Vec<_>>(), "each step once");
    let names: Vec<String> = server.params().into_iter().map(|param| param.0).collect();
    assert_eq!(names.len(), names.iter().collect::<BTreeSet<_>>().len(), "parameters do not change");
    assert_eq!(server.statuses(), ["FINISHED", "RUNNING", "FINISHED"]);
}

#[test]
fn a_server_that_is_away_gives_a_warning() {
    let run = Run::new();
    // A port on which nothing listens.
    let uri = Server::start(Behaviour::default()).uri.clone();
    thread::sleep(Duration::from_millis(100));
    let outcome = train(&run, &format!("--mlflow {uri}"), &[]).succeeded();
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let [first, last] = lines[..] else { panic!("a warning and the number of points: {outcome:?}") };
    assert!(first.contains(&uri) && first.contains("training continues"), "{first}");
    assert!(last.contains("not sent: 36 of 36 points, the status, config.json"), "{last}");
    assert_eq!(run.losses().len(), 8);
}

#[test]
fn temporary_errors_are_retried() {
    let failing = Behaviour { failures: 2, status: 503, ..Behaviour::default() };
    let (server, run) = (Server::start(failing), Run::new());
    let user = [("MLFLOW_TRACKING_USERNAME", "me"), ("MLFLOW_TRACKING_PASSWORD", "hunter2")];
    let outcome = train(&run, &format!("--mlflow {}", server.uri), &user).succeeded();
    assert_eq!(outcome.stderr.lines().count(), 1, "{outcome:?}");
    assert!(outcome.stderr.contains("503") && outcome.stderr.contains("Basic ***"), "{outcome:?}");
    assert_eq!(values_of(&server, "train/loss"), run.losses());
    assert_eq!(server.statuses(), ["FINISHED"]);
    let requests = server.requests();
    assert_eq!(requests[0].authorization.as_deref(), Some("Basic bWU6aHVudGVyMg=="));
    for secret in ["hunter2", "bWU6aHVudGVyMg=="] {
        assert!(!format!("{outcome:?}").contains(secret), "{outcome:?}");
        assert_absent(&run.path, secret);
    }
}

#[test]
fn a_server_that_refuses_the_run_is_not_asked_again() {
    let refusing = Behaviour { failures: usize::MAX, status: 401, ..Behaviour::default() };
    let server = Server::start(refusing);
    let outcome = train(&Run::new(), &format!("--mlflow {}", server.uri), &[]).succeeded();
    assert_eq!(outcome.stderr.lines().count(), 2, "{outcome:?}");
    assert!(outcome.stderr.contains("401") && outcome.stderr.contains("36 of 36 points"), "{outcome:?}");
    assert!(server.requests().is_empty());
}

#[test]
fn a_slow_server_delays_the_end_by_a_bounded_time() {
    let slow = Behaviour { delay: Duration::from_secs(20), ..Behaviour::default() };
    let (server, run) = (Server::start(slow), Run::new());
    let began = Instant::now();
    let outcome = train(&run, &format!("--mlflow {}", server.uri), &[]).succeeded();
    let whole = began.elapsed().as_secs_f64();
    let training = run.summary()["seconds"].as_f64().expect("seconds");
    assert!(outcome.stderr.contains("not sent: 36 of 36 points"), "{outcome:?}");
    assert!(training < whole - 9.0, "the wait is at the end: {training} s of {whole} s");
}

#[test]
fn a_failed_and_a_stopped_run_have_their_status() {
    let server = Server::start(Behaviour::default());
    let flags = format!("--mlflow {} --lr 1e30 --scale-lr none", server.uri);
    let outcome = train(&Run::new(), &flags, &[]);
    assert_ne!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(server.statuses(), ["FAILED"]);

    let (server, run) = (Server::start(Behaviour::default()), Run::new());
    let line = format!("{RUN} --mlflow {} --epochs 500 --run-dir {}", server.uri, run.path.display());
    let child = example_command("mnist_ddp", &line).spawn().expect("the program was built");
    wait_within(Duration::from_secs(120), "points", || !server.points().is_empty());
    signal(child.id(), libc::SIGINT);
    let outcome = finish(child);
    assert_eq!(outcome.code, Some(130), "{outcome:?}");
    assert_eq!(server.statuses(), ["KILLED"]);
    let steps = run.losses().len();
    assert_eq!(points_of(&server, "train/loss").len(), steps, "all points are sent");
    assert!(server.files().iter().any(|file| file.0 == "config.json"));
}

#[test]
fn bad_addresses_are_errors_without_their_passwords() {
    let run = Run::new();
    for (uri, words) in [
        ("http://me:hunter2@host:5000", "MLFLOW_TRACKING_PASSWORD"),
        ("http://host:5000?token=hunter2", "remove the query"),
        ("localhost:5000", "use http://HOST:PORT"),
    ] {
        let outcome = train(&run, &format!("--mlflow {uri}"), &[]);
        let stderr = outcome.failed_with(&["--mlflow: ", words]);
        assert!(!stderr.contains("hunter2"), "{stderr}");
        assert!(!run.path.exists());
    }
}
