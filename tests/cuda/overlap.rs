//! All-reduces overlap with backward, and the device waits for their results.
//!
//! The stand-in executes streams in random order, constrained only by events. It counts the kernels that are launched
//! between a collective and the point at which the device waits for it.

use crate::{
    common::Run,
    stand_in::{Machine, SMALL},
};
use std::fs;

const DDP: &str = "--mode ddp --nproc-per-node 2 --transport nccl --batch-size 4";

/// Losses with one seed of the execution order; `None` if the run failed.
fn losses(machine: &Machine, seed: u64) -> Option<Vec<f64>> {
    println!("CUDA_STAND_IN_SEED={seed}");
    let run = Run::new();
    // If only one rank reads a wrong loss, it waits for the other one's.
    let flags = format!("--device cuda --run-dir {} {SMALL} {DDP} --timeout 10", run.path.display());
    let outcome = machine.clone().with("CUDA_STAND_IN_SEED", seed).train(&flags);
    (outcome.code == Some(0)).then(|| run.losses())
}

/// Number of kernels per rank that are independent of a collective launched before them.
fn independent(flags: &str) -> Vec<u64> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(2).with("CUDA_STAND_IN_COUNTS", folder.path().join("counts").display());
    machine.trained(&format!("{SMALL} {DDP} {flags}"));
    let files = fs::read_dir(folder.path()).expect("counts").map(|file| file.expect("a file").path());
    let counts =
        files.map(|file| fs::read_to_string(file).expect("text")).filter(|text| text.contains("launches "));
    counts
        .map(|text| {
            let line =
                text.lines().find_map(|line| line.strip_prefix("launches independent of collectives "));
            line.map_or(0, |number| number.parse().expect("a number"))
        })
        .collect()
}

#[test]
fn all_reduces_overlap_with_backward() {
    let counts = independent("");
    assert!(counts.len() == 2 && counts.iter().all(|count| *count > 0), "{counts:?}");
    assert_eq!(independent("--no-overlap"), [0, 0]);
}

/// One rank enqueues the bucket of the large layer late, while backward calls collectives of SyncBatchNorm.
#[test]
fn a_late_bucket_and_sync_batch_norm_do_not_wait_for_each_other() {
    let flags = format!("{SMALL} {DDP} --sync-bn --timeout 20");
    let expected = Machine::new(2).trained(&flags).losses();
    let late = Machine::new(2).with("STAND_IN", "slow_large_call:0=200").trained(&flags).losses();
    assert_eq!(late, expected);
}

/// Without the waits between Burn's streams and NCCL's, results are wrong.
///
/// Each all-reduce takes 100 ms, so that it has not ended when its result is used without a wait. Each kernel
/// takes 1 ms, because a missing wait for kernels has no effect if the device is faster than the host.
#[test]
fn missing_waits_are_detected() {
    let machine = Machine::new(2).with("STAND_IN", "busy:0=100,busy:1=100").with("CUDA_STAND_IN_BUSY", 1);
    let expected = losses(&machine, 1);
    assert!(expected.is_some());
    for which in ["stream", "context"] {
        let wrong = machine.clone().with("CUDA_STAND_IN_IGNORE_WAITS", which);
        assert!((1..=5).any(|seed| losses(&wrong, seed) != expected), "{which}");
    }
}
