//! `scripts/gpu-check`, rehearsed on the CPU.

use crate::common::gpu_check::Check;
use std::fs;
use tempfile::TempDir;

/// Runs a command on the CPU, with its files in `cache`.
fn rehearse(cache: &TempDir, arguments: &[&str], mistake: &str) -> Check {
    let cache = cache.path().to_str().expect("UTF-8");
    let variables = [("GPU_CHECK_DEVICE", "cpu"), ("XDG_CACHE_HOME", cache), ("GPU_CHECK_MISTAKE", mistake)];
    Check::run(arguments, &variables.map(|(name, value)| (name.into(), value.into())))
}

fn cache() -> TempDir {
    tempfile::tempdir().expect("temporary folder")
}

#[test]
fn start_passes_on_a_cpu() {
    let check = rehearse(&cache(), &["start"], "");
    assert_eq!(check.outcome.code, Some(0), "{:#?}", check.outcome);
    let parts = check.parts();
    for part in ["second start", "collectives, world of 2", "ordering, world of 2", "a killed rank"] {
        assert!(parts.contains(&(part.into(), "passed".into())), "{part}: {parts:?}");
    }
    let files = fs::read_dir(&check.folder).expect("results").map(|file| file.expect("a file").file_name());
    let mut files: Vec<_> = files.map(|name| name.into_string().expect("UTF-8")).collect();
    files.sort();
    assert_eq!(files, ["start.json", "start.log", "start.txt"]);
}

#[test]
fn losses_of_two_ranks_pass_and_mistakes_fail() {
    let cache = cache();
    let check = |mistake: &str| rehearse(&cache, &["correctness", "--only", "plain ddp"], mistake);
    check("").assert_all("passed");
    // A learning rate that is 1 % too high, and gradients that are summed.
    for mistake in ["0.005 0.00505", "none linear"] {
        check(mistake).assert_all("failed");
    }
}

#[test]
fn a_command_without_time_keeps_its_results() {
    let check = rehearse(&cache(), &["start", "--seconds", "6"], "");
    assert_eq!(check.outcome.code, Some(1), "{:#?}", check.outcome);
    let parts = check.parts();
    let any = |result: &str| parts.iter().any(|(_, of_part)| of_part == result);
    assert!(any("passed") && any("failed"), "{parts:?}");
    let table = fs::read_to_string(check.folder.path().join("start.txt")).expect("a table");
    assert!(table.contains("no time left"), "{table}");
}
