//! `--auto-batch` halves batches that do not fit into the emulated devices' memory.

use crate::{
    common::{Outcome, Run, mnist},
    stand_in::Machine,
};
use std::fs;

/// Bytes of a device's memory: little more than the program requires at its start.
const MEMORY: usize = 320_000_000;

/// Bytes of it that another program takes then. 100 images need more than the rest, and 50 do not.
const OTHERS: usize = 285_000_000;

const FLAGS: &str =
    "--device cuda --dataset subset --eval-limit 16 --dropout 0 --scale-lr none --lr 0.01 --progress plain
    --network lenet --train-limit 200";

/// A machine with two small devices.
fn machine() -> Machine {
    Machine::new(2).with("CUDA_STAND_IN_MEMORY", MEMORY).with("CUDA_STAND_IN_OTHERS", OTHERS)
}

fn train(machine: &Machine, flags: &str, run: &Run) -> Outcome {
    machine.train(&format!("{FLAGS} {flags} --run-dir {}", run.path.display()))
}

/// The last header's line about the batch.
fn batch(outcome: &Outcome) -> &str {
    outcome.stdout.lines().rev().find_map(|line| line.strip_prefix("batch ")).expect("a line").trim()
}

#[test]
fn a_batch_that_does_not_fit_is_halved_on_all_ranks() {
    for (way, size, halved) in [
        ("--mode single", 100, 50),
        ("--mode dp --device-ids cuda:0,cuda:1", 200, 100),
        ("--mode ddp --nproc-per-node 2 --transport nccl", 100, 50),
    ] {
        let [ours, by_hand] = [Run::new(), Run::new()];
        let way = format!("{way} --max-steps 1");
        let outcome =
            train(&machine(), &format!("{way} --batch-size {size} --auto-batch"), &ours).succeeded();
        let words = format!("; --batch-size {size} --grad-accum-steps 1 did not fit into device memory");
        assert!(
            batch(&outcome).starts_with(&format!("{halved} per rank x 2 batches per step")),
            "{outcome:#?}"
        );
        assert!(batch(&outcome).ends_with(&words), "{outcome:#?}");
        assert!(outcome.stderr.contains("with half the batch"), "{outcome:#?}");
        let flags = format!("{way} --batch-size {halved} --grad-accum-steps 2");
        train(&machine(), &flags, &by_hand).succeeded();
        assert_eq!(ours.digest(), by_hand.digest(), "{way}");
        assert_eq!(ours.losses(), by_hand.losses(), "{way}");
        let flags = &ours.json("config.json")["flags"];
        assert_eq!(
            (&flags["batch-size"], &flags["grad-accum-steps"]),
            (&halved.into(), &2.into()),
            "{flags}"
        );
    }
}

#[test]
fn a_run_with_a_checkpoint_continues_with_half_the_batch() {
    let ours = Run::new();
    let way = "--mode ddp --nproc-per-node 2 --transport nccl --resume";
    // On devices with more memory.
    train(&Machine::new(2), &format!("{way} --batch-size 100"), &ours).succeeded();
    let by_hand = ours.copied();
    let way = format!("{way} --epochs 2");
    let outcome = train(&machine(), &format!("{way} --batch-size 100 --auto-batch"), &ours).succeeded();
    assert_eq!(outcome.stdout.matches("step-000001: after step 1").count(), 2, "{outcome:#?}");
    assert!(!outcome.stderr.contains("warning"), "{outcome:#?}");
    train(&machine(), &format!("{way} --batch-size 50 --grad-accum-steps 2"), &by_hand).succeeded();
    assert_eq!(ours.digest(), by_hand.digest());
}

#[test]
fn all_ranks_start_again_if_one_has_too_little_memory() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let script = folder.path().join("script");
    fs::write(&script, "[ $RANK = 0 ] && unset CUDA_STAND_IN_MEMORY; exec \"$@\"").expect("written");
    let digest = |flags: &str| {
        let run = Run::new();
        let command = format!("launch --nproc-per-node 2 -- sh {} {}", script.display(), mnist().display());
        let flags = format!("{FLAGS} --max-steps 1 {flags} --run-dir {}", run.path.display());
        machine().run(&format!("{command} {flags}")).succeeded();
        run.digest()
    };
    assert_eq!(digest("--batch-size 100 --auto-batch"), digest("--batch-size 50 --grad-accum-steps 2"));
}

#[test]
fn an_odd_batch_that_does_not_fit_is_an_error() {
    for (flags, words) in [
        ("--mode single --batch-size 101 --auto-batch", "--auto-batch: --batch-size 101 cannot be halved"),
        ("--mode single --batch-size 100", "let --auto-batch choose it"),
    ] {
        let outcome = train(&machine(), flags, &Run::new());
        assert_eq!(outcome.code, Some(1), "{outcome:#?}");
        outcome.failed_with(&[words, "out of device memory"]);
    }
}
