//! Rendezvous of ranks that a user starts: the arguments of PyTorch's `init_process_group` as flags, and messages about
//! missing ranks.

use crate::common::{self, Outcome, Run, command, finish, free_port, mnist};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Child,
    thread,
    time::Duration,
};

const RUN: &str = "--dataset subset --train-limit 256 --eval-limit 20 --max-steps 3 --batch-size 16 --threads 1 \
                   --device cpu --progress plain";

/// Starts one rank with these flags and variables.
fn rank(flags: &str, vars: &[(&str, &str)], run: &Path) -> Child {
    let mut rank = command(&mnist(), &["--run-dir"]);
    rank.arg(run).args(RUN.split_whitespace()).args(flags.split_whitespace());
    for name in ["BURN_DDP_SECRET", "BURN_DDP_JOB_ID", "TORCHELASTIC_RUN_ID", "BURN_DDP_RENDEZVOUS_TIMEOUT"] {
        rank.env_remove(name);
    }
    rank.envs(vars.iter().copied()).spawn().expect("built")
}

/// The digest of a run of two ranks, with `RANK` in the flags replaced by the rank.
fn trained(flags: &str, vars: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = folder.path().join("run");
    let flags = flags.replace("FOLDER", &folder.path().display().to_string());
    let started: Vec<Child> =
        ["0", "1"].iter().map(|number| rank(&flags.replace("RANK", number), vars, &run)).collect();
    for rank in started {
        finish(rank).succeeded();
    }
    assert!(!folder.path().join("job").exists(), "the rendezvous file is left");
    let config = std::fs::read_to_string(run.join("config.json")).expect("a configuration");
    assert!(!config.contains("\"rank\"") && !config.contains("init-method"), "{config}");
    Run::at(run).digest_of_two()
}

#[test]
fn every_init_method_trains_the_same() {
    let expected = common::trained(&format!("{RUN} --nproc-per-node 2")).digest();
    let this_rank = "--rank RANK --world-size 2";
    let tcp = format!("--init-method tcp://127.0.0.1:{} {this_rank}", free_port());
    assert_eq!(trained(&tcp, &[]), expected);
    assert_eq!(trained(&format!("--init-method=file://FOLDER/job {this_rank}"), &[]), expected);
    let port = free_port().to_string();
    let vars = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())];
    assert_eq!(trained(&format!("--init-method env:// {this_rank} --job-id mine"), &vars), expected);
}

#[test]
fn self_launched_ranks_use_the_given_init_method() {
    let run = Run::new();
    let flags = format!("--nproc-per-node 2 --init-method tcp://127.0.0.1:{}", free_port());
    finish(rank(&flags, &[], &run.path)).succeeded();
    run.digest_of_two();
}

#[test]
fn a_rank_without_a_world_size_is_rejected() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let refused = |flags: &str, words: &[&str]| {
        let outcome = finish(rank(flags, &[], &folder.path().join("run")));
        for word in words {
            assert!(outcome.stderr.contains(word), "`{flags}` should name {word}: {outcome:#?}");
        }
        assert_ne!(outcome.code, Some(0));
    };
    refused("--rank 1", &["--world-size"]);
    refused("--rank 2 --world-size 2 --init-method tcp://127.0.0.1:1", &["--rank 2", "--world-size 2"]);
    refused("--init-method http://x", &["--init-method", "tcp://host:port"]);
    refused("--rank 1 --world-size 2", &["MASTER_PORT"]);
}

#[test]
fn two_jobs_at_one_address_reject_each_other_by_name() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let method =
        format!("--init-method tcp://127.0.0.1:{} --world-size 2 --rendezvous-timeout 120", free_port());
    let start = |flags: &str, name: &str| rank(&format!("{method} {flags}"), &[], &folder.path().join(name));
    let mut first = start("--rank 0 --job-id blue", "blue");
    // Its server is running when it rejects a rank of another job by name.
    let intruder = |flags: &str| -> Outcome { finish(start(flags, "red")) };
    for flags in ["--rank 1 --job-id red", "--rank 0 --job-id red", "--rank 1"] {
        let outcome = intruder(flags);
        outcome.failed_with(&[
            "job \"blue\"",
            if flags.contains("red") { "job \"red\"" } else { "without an id" },
        ]);
    }
    assert_eq!(first.try_wait().expect("our own child"), None, "the first job is not hurt");
    finish(start("--rank 1 --job-id blue", "blue")).succeeded();
    finish(first).succeeded();
}

/// Waits until a line of a rank's standard error contains all of `words`.
fn wait_for_line(child: &mut Child, words: &[&str]) {
    let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
    let line =
        lines.find(|line| line.as_ref().is_ok_and(|line| words.iter().all(|word| line.contains(word))));
    assert!(line.is_some(), "no line with {words:?}");
    // Keeps the pipe open for later output.
    thread::spawn(move || lines.for_each(drop));
}

#[test]
fn missing_ranks_are_named_while_the_others_wait() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let address = format!("127.0.0.1:{}", free_port());
    let method = format!("--init-method tcp://{address} --world-size 3");
    let start = |number: usize| rank(&format!("{method} --rank {number}"), &[], &folder.path().join("run"));
    let mut second = start(1);
    wait_for_line(&mut second, &["rank 1: ", &address, "after 1", "still waiting for rank 0"]);
    let mut main = start(0);
    wait_for_line(&mut main, &["rank 0: ", &address, "still waiting for rank 2", "2 of 3 came"]);
    finish(start(2)).succeeded();
    for mut rank in [main, second] {
        // Its pipes are read above.
        let ended = (0..3000).find_map(|_| {
            thread::sleep(Duration::from_millis(100));
            rank.try_wait().expect("our own child")
        });
        assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    }
}

#[test]
fn a_flag_or_variable_sets_the_rendezvous_timeout() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let method = format!("--init-method tcp://127.0.0.1:{} --rank 0 --world-size 2", free_port());
    let ends = |flags: &str, vars: &[(&str, &str)], words: &[&str]| {
        finish(rank(&format!("{method} {flags}"), vars, &folder.path().join("run"))).failed_with(words);
    };
    let missing = ["after 1 s", "still waiting for rank 1 (1 of 2 came)"];
    ends("--rendezvous-timeout 1", &[], &missing);
    let variable = "BURN_DDP_RENDEZVOUS_TIMEOUT";
    ends("", &[(variable, "1")], &missing);
    ends("--rendezvous-timeout 1", &[(variable, "600")], &missing);
    ends("", &[(variable, "soon")], &[variable, "\"soon\"", "seconds"]);
}
