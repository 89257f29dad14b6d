//! The rehearsal of the chapter "Two machines". Needs root and iproute2.
//!
//! Otherwise the test prints a warning past the test harness, and fails if the environment variable `CI` or
//! `BURN_DDP_REQUIRE_NETNS` is set.

use crate::common::{Outcome, command, example, finish, program};
use std::{env, io::Write, path::Path, process::Command};

/// Whether network namespaces can be created.
fn namespaces_work() -> bool {
    let name = format!("ch-two-machines-{}", std::process::id());
    let ip = |verb: &str| {
        Command::new("ip").args(["netns", verb, &name]).output().is_ok_and(|output| output.status.success())
    };
    let works = ip("add") && ip("delete");
    if !works {
        let set = |name: &&str| env::var(name).is_ok_and(|value| !matches!(&*value, "" | "0" | "false"));
        if let Some(name) = ["CI", "BURN_DDP_REQUIRE_NETNS"].into_iter().find(set) {
            panic!("{name} is set, but network namespaces cannot be created");
        }
        // The harness captures `eprintln`.
        let _ = writeln!(std::io::stderr(), "NOT RUN: the rehearsal needs root and iproute2");
    }
    works
}

/// Launches two ranks per node in a rehearsal, after the shell commands `before`.
fn rehearse(before: &str, node_rank: &str) -> Outcome {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("book/code/two-nodes");
    let job = format!(
        "{before} {} launch --nnodes 2 --node-rank {node_rank} --master-addr $MASTER_ADDR --nproc-per-node 2 \
         --join-timeout 5 -- {} --device cpu",
        program().display(),
        example("first_all_reduce").display()
    );
    let mut command = command(&script, &[&job]);
    let child = command.env_remove("BURN_DDP_SECRET").spawn().expect("the script");
    let namespaces = [0, 1].map(|node| format!("/run/netns/two-nodes-{}-{node}", child.id()));
    let outcome = finish(child);
    assert!(!namespaces.iter().any(|file| Path::new(file).exists()), "left behind: {namespaces:?}");
    outcome
}

#[test]
fn the_rehearsal_connects_two_nodes_and_reports_what_differs() {
    if !namespaces_work() {
        return;
    }
    let outcome = rehearse("", "$NODE_RANK").succeeded();
    assert_eq!(outcome.stdout.matches("after:  [10.0, 10.0]").count(), 4, "{outcome:#?}");
    for (before, node_rank, error) in [
        ("BURN_DDP_SECRET=secret-of-$NODE_RANK", "$NODE_RANK", "its secret differs from this rank's"),
        ("unset BURN_DDP_SECRET;", "$NODE_RANK", "set BURN_DDP_SECRET to the same long random text"),
        ("", "0", "node rank 0 is already"),
        ("[ $NODE_RANK = 1 ] ||", "0", "1 of at least 2 nodes"),
        ("[ $NODE_RANK = 0 ] ||", "1", "node 0's launcher was not found"),
    ] {
        let outcome = rehearse(before, node_rank);
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        assert!(outcome.stdout.contains(error), "{error}: {outcome:#?}");
    }
}
