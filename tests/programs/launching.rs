//! `launch` in programs with threads, loggers, panic hooks and several launches.

use crate::common::{Outcome, command, example, finish, run_example};

const NAME: &str = "launch_program";

/// Runs the program on one device, as if the machine had as many cores as `pool`.
fn single(pool: usize, flags: &str) -> Outcome {
    let flags: Vec<&str> =
        ["--device", "cpu", "--mode", "single"].into_iter().chain(flags.split_whitespace()).collect();
    let mut program = command(&example(NAME), &flags);
    finish(program.env("RAYON_NUM_THREADS", pool.to_string()).spawn().expect("built")).succeeded()
}

#[test]
fn threads_that_exist_are_used() {
    let outcome = run_example(NAME, "--compute --device cpu --nproc-per-node 2").succeeded();
    assert_eq!(outcome.stderr, "", "{outcome:#?}");
    for rank in 0..2 {
        // The launcher has set BURN_DEVICE: the program had several threads.
        let expected = format!("rank {rank}: ");
        let line = outcome.stdout.lines().find(|line| line.starts_with(&expected)).expect("a line");
        assert!(line.ends_with("sum 16, flex"), "{line}");
    }
    let outcome = single(3, "--compute --threads 1");
    assert!(outcome.stdout.contains("3 threads, sum 8"), "{outcome:#?}");
    let warning = "warning: 3 compute thread(s) were started before launch and stay in use in place of 1";
    assert!(outcome.stderr.starts_with(warning) && outcome.stderr.lines().count() == 1, "{outcome:#?}");
    let outcome = single(3, "--threads 1");
    assert!(outcome.stdout.contains("1 threads, sum 8, flex") && outcome.stderr.is_empty(), "{outcome:#?}");
}

/// No thread may read the environment while it is changed.
#[test]
fn the_environment_of_a_program_with_threads_is_left_alone() {
    let outcome = single(2, "--compute --threads 2");
    assert!(outcome.stdout.contains("2 threads, sum 8, \n") && outcome.stderr.is_empty(), "{outcome:#?}");
}

#[test]
fn a_second_launch_of_processes_is_refused() {
    for flags in ["--device cpu --nproc-per-node 2", "--spawn"] {
        let outcome = run_example(NAME, &format!("--launches 2 {flags}"));
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        let last = outcome.stderr.lines().last().unwrap_or_default();
        assert!(last.starts_with("error: ranks are launched a second time"), "{outcome:#?}");
        assert!(last.contains("launch_threads"), "{outcome:#?}");
    }
    assert_eq!(single(1, "--launches 2").stdout.lines().count(), 2);
}

#[test]
fn loggers_and_panic_hooks_of_the_program_stay_in_use() {
    for when in ["before", "after", "inspecting"] {
        let outcome = single(1, &format!("--logger {when}"));
        assert!(outcome.stdout.starts_with("log: rank 0\n") && outcome.stderr.is_empty(), "{outcome:#?}");
    }
    let outcome = run_example(NAME, "--panic --device cpu --nproc-per-node 2");
    assert_eq!(outcome.code, Some(101), "{outcome:#?}");
    assert!(outcome.stderr.contains("hook: a defect"), "{outcome:#?}");
}
