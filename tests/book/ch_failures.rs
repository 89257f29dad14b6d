//! The claims of the chapter "Clusters and failures".

use crate::common::{
    command, example, finish, free_port,
    launched::{signal, wait_until},
    program,
};
use std::{path::Path, process::Child};

/// Starts three ranks without a launcher, of which rank 1 fails in step 20.
fn start(fault: &str, flight: &Path) -> Vec<Child> {
    let port = free_port();
    let rank = |rank: usize| {
        let mut command =
            command(&example("failures"), &["--device", "cpu", "--timeout", "3", "--fault", fault]);
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3").env("MASTER_PORT", port.to_string());
        command.env("BURN_DDP_FLIGHT_DIR", flight).spawn().expect("cargo built the examples")
    };
    (0..3).map(rank).collect()
}

#[test]
fn every_rank_reports_the_rank_that_failed() {
    const LOST: &str = "rank 1 left the group: ";
    for (fault, code_of_rank_1, code, words) in [
        ("exit", Some(3), 75, [LOST, "its process ended or closed the connection"]),
        ("kill", None, 75, [LOST, "its process ended or closed the connection"]),
        ("finish", Some(0), 75, [LOST, "it had finished or destroyed its group"]),
        ("differ", Some(1), 1, ["collective mismatch: ", "rank 1 called all_reduce #22 (1001 x F32, Mean)"]),
    ] {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (rank, outcome) in start(fault, folder.path()).into_iter().map(finish).enumerate() {
            if rank == 1 {
                assert_eq!(outcome.code, code_of_rank_1, "{fault}: {outcome:#?}");
                continue;
            }
            assert_eq!(outcome.code, Some(code), "{fault}: {outcome:#?}");
            for word in words {
                assert!(
                    outcome.stdout.contains(word) && outcome.stderr.contains(word),
                    "{fault}: {outcome:#?}"
                );
            }
        }
    }
}

#[test]
fn a_stopped_and_a_slow_rank_are_told_apart() {
    for (fault, word, diagnosis) in [
        ("stop", "rank 1 does not answer (stopped or unreachable)", "Rank 1 leaves no record"),
        ("slow", "rank 1 has not called it; its last call was all_reduce #21", "but rank 1 never did"),
    ] {
        let folder = tempfile::tempdir().expect("temporary folder");
        let record = |rank: usize| folder.path().join(format!("flight-rank{rank}.json"));
        let mut ranks = start(fault, folder.path());
        let failed = ranks.remove(1);
        for outcome in ranks.into_iter().map(finish) {
            assert_eq!(outcome.code, Some(1), "{outcome:#?}");
            let error = "all_reduce #22 (1000 x F32, Mean) timed out after 3 s";
            assert!(outcome.stderr.contains(error) && outcome.stderr.contains(word), "{outcome:#?}");
        }
        // The slow rank records the failure while it computes.
        wait_until("rank 1's record", || fault == "stop" || record(1).exists());
        signal(failed.id(), libc::SIGKILL);
        finish(failed);
        let files: Vec<_> = (0..3).map(record).filter(|file| file.exists()).collect();
        let mut explain = command(&program(), &["explain"]);
        let outcome = finish(explain.args(&files).spawn().expect("built")).succeeded();
        assert!(outcome.stdout.contains(diagnosis), "{outcome:#?}");
        assert_eq!(files.len(), if fault == "stop" { 2 } else { 3 });
    }
}
