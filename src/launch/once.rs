//! Refuses to start ranks where their processes would not run as intended.
//!
//! Each rank is a process that runs the program from its start.

use anyhow::{Result, bail};
use std::{
    env,
    ffi::OsStr,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

/// Whether this process has launched ranks or run as one.
static LAUNCHED: AtomicBool = AtomicBool::new(false);

/// Records that this process launches ranks or runs as one; `alone` if it is the only process of its world.
///
/// # Errors
/// If it has done so before and is not alone: a rank would run the first launch in place of the second.
pub fn claim(alone: bool) -> Result<()> {
    if LAUNCHED.swap(true, Ordering::Relaxed) && !alone {
        bail!(
            "ranks are launched a second time, but each rank is a process that runs the program from its start, and so the first launch; launch once, or use launch_threads, whose ranks are threads"
        );
    }
    Ok(())
}

/// Refuses a start from a `#[test]`.
///
/// # Errors
/// If this is a thread of a test program, whose copies would run all of its tests.
pub fn refuse_in_tests(ranks: usize) -> Result<()> {
    if env::current_exe().is_ok_and(|program| is_test(&program, thread::current().name())) {
        bail!(
            "a test cannot start {ranks} rank(s) as processes, because each would run all tests of the program; use launch_threads, whose ranks are threads"
        );
    }
    Ok(())
}

/// Whether cargo built `program` as a test, and `thread` is one of those that run tests.
///
/// The thread of `main` belongs to a program without Rust's test harness.
fn is_test(program: &Path, thread: Option<&str>) -> bool {
    let folder = program.parent().and_then(Path::file_name);
    folder == Some(OsStr::new("deps")) && thread != Some("main")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_test_harness_is_refused() {
        let (test, program) = (Path::new("target/debug/deps/mine-0f3a"), Path::new("target/debug/mine"));
        assert!(is_test(test, Some("tests::mine")));
        assert!(!is_test(test, Some("main")) && !is_test(program, Some("tokio-runtime-worker")));
        let error = refuse_in_tests(2).expect_err("this is a test").to_string();
        assert!(error.contains("2 rank(s)") && error.contains("launch_threads"), "{error}");
    }
}
