//! Order between Burn's streams and NCCL's.
//!
//! The stand-in executes streams in random order, constrained only by events, so that a missing dependency changes the
//! result.

use crate::{
    common::assert_close,
    stand_in::{Machine, SMALL},
};

const DDP: &str = "--mode ddp --nproc-per-node 2 --transport nccl --batch-size 12";

/// Losses with one seed of the execution order.
fn losses(machine: Machine, seed: u64) -> Vec<f64> {
    println!("CUDA_STAND_IN_SEED={seed}");
    machine.with("CUDA_STAND_IN_SEED", seed).trained(&format!("{SMALL} {DDP}")).losses()
}

#[test]
fn results_do_not_depend_on_the_order_of_streams() {
    let expected = losses(Machine::new(2), 1);
    for seed in 2..=3 {
        assert_close(&format!("seed {seed}"), &losses(Machine::new(2), seed), &expected, 0.0);
    }
}

/// Verifies the test above: it fails if waits for events of either kind are ignored.
#[test]
fn a_missing_wait_changes_the_result() {
    let expected = losses(Machine::new(2), 1);
    for ignored in ["stream", "context"] {
        let notices = |seed: u64| {
            let machine = Machine::new(2).with("CUDA_STAND_IN_IGNORE_WAITS", ignored);
            let folder = tempfile::tempdir().expect("temporary folder");
            let path = folder.path().join("run");
            let machine = machine.with("CUDA_STAND_IN_SEED", seed);
            let outcome = machine.train(&format!("--device cuda {SMALL} {DDP} --run-dir {}", path.display()));
            outcome.code != Some(0) || crate::common::Run::at(path).losses() != expected
        };
        assert!((1..=3).any(notices), "waits of a {ignored} are ignored, and nothing changed");
    }
}
