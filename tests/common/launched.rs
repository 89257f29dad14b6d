//! Runs `burn-ddp launch` with a shell script as the program.

use super::{Outcome, command, finish, program};
use std::{
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

/// Waits until `done` returns true, with a deadline.
pub fn wait_until(what: &str, done: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "not within a minute: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

pub fn signal(pid: u32, signal: i32) {
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0, "process {pid} is there");
}
