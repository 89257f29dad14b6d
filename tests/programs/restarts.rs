//! A training under `burn-ddp launch --max-restarts` that loses a rank restarts from its last checkpoint.
//!
//! Its final parameters are bit-identical to those of an undisturbed run.

use crate::common::{
    Run, command, finish, free_port,
    launched::{ranks, signal, steps, wait_until},
    mnist, processes_with, program, trained,
};

const RUN: &str =
    "--dataset subset --train-limit 960 --eval-limit 20 --batch-size 16 --threads 1 --save-every 5";

#[test]
fn a_job_that_loses_a_rank_ends_with_identical_parameters() {
    let undisturbed = trained(&format!("{RUN} --nproc-per-node 2")).digest();
    // A stopped rank is detected when a call times out. Rank 0 is the one that writes checkpoints.
    for (marker, number, victim) in [
        ("restarts-4901", libc::SIGKILL, 1),
        ("restarts-4902", libc::SIGKILL, 0),
        ("restarts-4903", libc::SIGSTOP, 1),
    ] {
        let run = Run::new();
        let mut job = command(&program(), &["launch", "--nproc-per-node", "2", "--max-restarts", "1", "--"]);
        job.arg(mnist()).args(["--device", "cpu", "--progress", "plain", "--timeout", "3"]);
        job.args(RUN.split_whitespace()).args(["--resume", "--run-dir"]).arg(&run.path);
        let job = job.env("BURN_DDP_TEST", marker).spawn().expect("built");
        wait_until("some steps and a checkpoint", || steps(&run.path) > 8);
        signal(ranks(marker)[&victim], number);
        let outcome = finish(job).succeeded();
        assert!(outcome.stderr.contains("restart 1 of 1"), "{outcome:#?}");
        assert!(outcome.stdout.contains("resume "), "it did not resume from a checkpoint: {outcome:#?}");
        assert_eq!(run.digest(), undisturbed, "after {number} to rank {victim}");
        assert!(processes_with(marker).is_empty());
    }
}

#[test]
fn a_job_that_loses_a_machine_continues_without_it() {
    let (marker, run, port) = ("restarts-4904", Run::new(), free_port());
    let [stays, goes] = ["0", "1"].map(|node| {
        let world = format!(
            "launch --nnodes 1:2 --max-restarts 1 --last-call 5 --master-addr 127.0.0.1 --master-port {port} --node-rank {node} --"
        );
        let mut launcher = command(&program(), &world.split(' ').collect::<Vec<_>>());
        launcher.arg(mnist()).args(["--device", "cpu", "--progress", "plain", "--resume"]);
        launcher.args(RUN.split_whitespace()).arg("--run-dir").arg(&run.path).env("BURN_DDP_TEST", marker);
        launcher.spawn().expect("built")
    });
    wait_until("some steps and a checkpoint", || steps(&run.path) > 8);
    signal(goes.id(), libc::SIGKILL);
    finish(goes);
    let outcome = finish(stays).succeeded();
    assert!(outcome.stderr.contains("node 1") && outcome.stderr.contains("restart 1 of 1"), "{outcome:#?}");
    for words in ["world size 2", "resume ", "world size 1"] {
        assert!(outcome.stdout.contains(words), "should say `{words}`: {outcome:#?}");
    }
    let summary = run.summary();
    assert_eq!(summary["world_size"], 1, "{summary:#}");
    // 960 images: the first steps used 32 each, the others 16, and none was skipped.
    assert!(summary["steps"].as_u64().is_some_and(|steps| (31..60).contains(&steps)), "{summary:#}");
    assert!(processes_with(marker).is_empty());
}
