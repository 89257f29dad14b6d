//! Runs `burn-ddp launch` with a shell script as the program.

use super::{Outcome, command, finish, processes_with, program};
use std::{
    collections::BTreeMap,
    fs,
    path::Path,
    process::Child,
    thread,
    time::{Duration, Instant},
};

/// Starts `burn-ddp launch FLAGS -- sh -c SCRIPT`.
pub fn start(flags: &str, script: &str, vars: &[(&str, &str)]) -> Child {
    let args: Vec<&str> =
        ["launch"].into_iter().chain(flags.split_whitespace()).chain(["--", "sh", "-c", script]).collect();
    let mut command = command(&program(), &args);
    command.env_remove("OMP_NUM_THREADS").env_remove("BURN_DDP_SECRET").envs(vars.iter().copied());
    command.spawn().expect("the program was built")
}

pub fn launch(flags: &str, script: &str) -> Outcome {
    finish(start(flags, script, &[]))
}

/// Lines of standard output, sorted because ranks print in any order.
pub fn sorted(outcome: &Outcome) -> Vec<&str> {
    let mut lines: Vec<&str> = outcome.stdout.lines().collect();
    lines.sort_unstable();
    lines
}

/// Waits until `done` returns true, at most a minute.
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    wait_within(Duration::from_secs(60), what, done);
}

/// Waits until `done` returns true, at most this long.
pub fn wait_within(limit: Duration, what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + limit;
    while !done() {
        assert!(Instant::now() < deadline, "not within {limit:?}: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until no process with this marker is left, for at most 20 seconds.
pub fn wait_until_gone(marker: &str) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !processes_with(marker).is_empty() {
        assert!(Instant::now() < deadline, "left behind: {:?}", processes_with(marker));
        thread::sleep(Duration::from_millis(50));
    }
}

pub fn signal(pid: u32, signal: i32) {
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "process {pid} is there");
}

/// Processes of the ranks of the job with this marker, by rank.
pub fn ranks(marker: &str) -> BTreeMap<usize, u32> {
    let rank = |pid: &u32| {
        let text = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let variable = text.split(|byte| *byte == 0).find_map(|variable| variable.strip_prefix(b"RANK="))?;
        String::from_utf8_lossy(variable).parse().ok()
    };
    processes_with(marker).into_iter().filter_map(|pid| Some((rank(&pid)?, pid))).collect()
}

/// Number of steps in the table of a run.
pub fn steps(run: &Path) -> usize {
    fs::read_to_string(run.join("steps.csv")).map_or(0, |text| text.lines().count().saturating_sub(1))
}
