//! `scripts/gpu-check`, rehearsed on the CPU.

use crate::common::{Outcome, command, finish, program};
use serde_json::Value;
use std::{fs, path::Path};
use tempfile::TempDir;

/// Runs a command of gpu-check; its results are in the folder.
fn gpu_check(arguments: &[&str], variables: &[(&str, &str)]) -> (TempDir, Outcome) {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/gpu-check");
    let mut words = vec![script.to_str().expect("UTF-8")];
    words.extend(arguments);
    let (results, program) = (folder.path().join("results"), program());
    words.extend([results.to_str().expect("UTF-8"), "--program", program.to_str().expect("UTF-8")]);
    let mut check = command("python3".as_ref(), &words);
    check.env("GPU_CHECK_DEVICE", "cpu").env("XDG_CACHE_HOME", folder.path()).envs(variables.iter().copied());
    let outcome = finish(check.spawn().expect("python3"));
    (folder, outcome)
}

/// The result of each part by its name.
fn results(folder: &TempDir, command: &str) -> Vec<(String, String)> {
    let text = fs::read(folder.path().join(format!("results/{command}.json"))).expect("results");
    let results: Value = serde_json::from_slice(&text).expect("JSON");
    let parts = results["parts"].as_array().expect("parts").iter();
    let word = |part: &Value, key: &str| part[key].as_str().expect("text").to_owned();
    parts.map(|part| (word(part, "name"), word(part, "result"))).collect()
}

#[test]
fn start_passes_on_a_cpu() {
    let (folder, outcome) = gpu_check(&["start"], &[]);
    outcome.succeeded();
    let results = results(&folder, "start");
    for part in ["second start", "collectives, world of 2", "ordering, world of 2", "a killed rank"] {
        assert!(results.contains(&(part.into(), "passed".into())), "{part}: {results:?}");
    }
    let mut files: Vec<_> = fs::read_dir(folder.path().join("results"))
        .expect("the folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    files.sort();
    assert_eq!(files, ["start.json", "start.log", "start.txt"]);
}

/// The tolerance passes two ranks and detects a learning rate that is 1 % too high, and gradients that are summed.
#[test]
fn losses_separate_correct_runs_from_mistakes() {
    for (mistake, expected) in [("", "passed"), ("--lr 0.00505", "failed"), ("--scale-lr linear", "failed")] {
        let (folder, _) = gpu_check(&["correctness", "--only", "plain ddp"], &[("GPU_CHECK_MISTAKE", mistake)]);
        let results = results(&folder, "correctness");
        assert_eq!(results, [("plain ddp".to_owned(), expected.to_owned())], "{mistake}");
    }
}

#[test]
fn an_interrupted_command_keeps_its_results() {
    let (folder, outcome) = gpu_check(&["start", "--seconds", "6"], &[]);
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    let results = results(&folder, "start");
    assert!(results[0].1 == "passed" && results.iter().any(|(_, result)| result == "failed"), "{results:?}");
    let table = fs::read_to_string(folder.path().join("results/start.txt")).expect("a table");
    assert!(table.contains("no time left"), "{table}");
}
