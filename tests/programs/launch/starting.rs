//! Start of a job: number of ranks, log folders, and interruption.

use crate::common::{
    Outcome, command, example, finish,
    launched::{launch, signal, start, wait_until},
    mnist, processes_with, run_example,
};
use std::{fs, path::Path, thread};

/// The log folder that the launcher prints.
fn filed_in(outcome: &Outcome) -> &Path {
    let line = outcome.stderr.lines().find_map(|line| line.strip_prefix("log files of this job: "));
    Path::new(line.unwrap_or_else(|| panic!("it should say where: {outcome:#?}")))
}

#[test]
fn jobs_with_one_log_folder_keep_their_logs_apart() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let flags = format!("--nproc-per-node 2 --log-dir {}", folder.path().display());
    let outcomes = ["first", "second"].map(|job| launch(&flags, &format!("echo {job} $RANK")).succeeded());
    for (job, outcome) in ["first", "second"].into_iter().zip(&outcomes) {
        for rank in 0..2 {
            let log = filed_in(outcome).join(format!("rank{rank}.stdout.log"));
            assert_eq!(fs::read_to_string(&log).expect("a log"), format!("{job} {rank}\n"));
        }
    }
    assert_eq!(fs::read_dir(folder.path()).expect("the folder").count(), 2, "a folder for each job");
    // All ranks of a job have its id.
    let outcome = launch(&flags, "echo $TORCHELASTIC_RUN_ID").succeeded();
    let logs = filed_in(&outcome);
    let name = fs::read_to_string(logs.join("rank1.stdout.log")).expect("a log");
    assert_eq!(logs, folder.path().join(name.trim()).join("attempt0"));
}

#[test]
fn too_many_ranks_for_a_machine_are_rejected() {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let limit = format!("the limit is {}", 32 * cores);
    let words = ["100000 ranks", &limit, "BURN_DDP_MAX_NPROC=100000"];
    launch("--nproc-per-node 100000", "true").failed_with(&words);
    let train = ["--device", "cpu", "--nproc-per-node", "100000"];
    finish(command(&mnist(), &train).spawn().expect("built")).failed_with(&words);
    run_example("all_reduce", "100000").failed_with(&words);
    let limited = |limit| finish(start("--nproc-per-node 3", "echo up", &[("BURN_DDP_MAX_NPROC", limit)]));
    limited("2").failed_with(&["3 ranks", "the limit is 2"]);
    limited("many").failed_with(&["BURN_DDP_MAX_NPROC=many"]);
    for raised in ["3", ""] {
        assert_eq!(limited(raised).succeeded().stdout.lines().count(), 3);
    }
}

#[test]
fn a_launcher_can_be_stopped_while_it_starts_ranks() {
    const RANKS: usize = 3000;
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = format!(": > {}/$RANK; exec sleep 300", folder.path().display());
    let count = RANKS.to_string();
    let marker = "many-ranks-4804";
    let vars = [("BURN_DDP_MAX_NPROC", count.as_str()), ("BURN_DDP_TEST", marker)];
    let launcher = start(&format!("--nproc-per-node {count}"), &script, &vars);
    wait_until("the first rank runs", || folder.path().join("0").exists());
    signal(launcher.id(), libc::SIGTERM);
    let outcome = finish(launcher);
    assert_eq!(outcome.code, Some(128 + libc::SIGTERM), "{outcome:#?}");
    let started = fs::read_dir(folder.path()).expect("the folder").count();
    assert!(started < RANKS, "it started all {started} ranks first");
    wait_until("all gone", || processes_with(marker).is_empty());
}

#[test]
fn an_example_rejects_invalid_world_sizes() {
    for bad in ["0", "x", "-1"] {
        let outcome = run_example("all_reduce", bad);
        assert_eq!(outcome.code, Some(2), "{bad}: {outcome:#?}");
        assert!(outcome.stderr.contains(&format!("'{bad}'")), "{bad}: {}", outcome.stderr);
        assert_eq!(outcome.stdout, "");
    }
}

#[test]
fn a_world_larger_than_the_batch_trains() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = format!("exec {} --dir {}", example("custom_learner").display(), folder.path().display());
    let large = start("--nproc-per-node 49", &script, &[("BURN_DDP_MAX_NPROC", "49")]);
    let lines = finish(large).succeeded().stdout;
    assert_eq!(lines.matches("epoch ").count(), 10, "a line for each epoch: {lines}");
}
