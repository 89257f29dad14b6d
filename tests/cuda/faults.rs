//! Failing devices: every rank ends with an error, and nothing hangs.

use crate::{
    common::{Outcome, Run},
    stand_in::{Machine, TINY},
};
use std::sync::Once;

const WAYS: [&str; 3] = [
    "--mode single --batch-size 24",
    "--mode ddp --nproc-per-node 2 --transport nccl --batch-size 12",
    "--mode dp --device-ids cuda:0,cuda:1 --batch-size 24",
];

/// Trains once in each mode to tune kernels.
///
/// During tuning a failing kernel is only skipped, so that the faults must occur after it.
fn tune() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for way in WAYS {
            Machine::new(2).losses(&format!("{TINY} {way}"));
        }
    });
}

/// Trains with this fault in each mode, at these calls, and checks the error.
fn fails(fault: &str, at: [usize; 3], words: &[&str]) {
    tune();
    for (way, at) in WAYS.into_iter().zip(at) {
        let outcome = with_fault(fault, at, way);
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
        check_error(&outcome, words);
    }
}

fn with_fault(fault: &str, at: usize, way: &str) -> Outcome {
    let machine = Machine::new(2).with(&format!("CUDA_STAND_IN_{fault}"), at);
    let run = Run::new();
    machine.train(&format!("--device cuda {TINY} {way} --timeout 30 --run-dir {}", run.path.display()))
}

/// Checks that each rank prints one or two lines, one of which contains `words`, and that there is no result.
fn check_error(outcome: &Outcome, words: &[&str]) {
    let errors: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("error: ")).collect();
    println!("{errors:?}");
    let named = errors.iter().any(|error| words.iter().all(|word| error.contains(word)));
    assert!(named, "{words:?} is not in {errors:?}: {outcome:#?}");
    assert!(!outcome.stderr.contains("stack backtrace"), "{outcome:#?}");
    assert!(outcome.stderr.lines().count() <= 4, "{outcome:#?}");
    assert!(!outcome.stdout.contains("test accuracy"), "a result: {outcome:#?}");
}

#[test]
fn a_module_that_cannot_be_loaded_ends_the_run() {
    fails("FAIL_MODULE", [40; 3], &["cuda:", "device kernel image is invalid"]);
}

/// Trains on a machine that measures kernels and has none cached. The first kernel with this name does not compile.
fn without(kernel: &str) -> Outcome {
    let cache = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(1).with("BURN_DDP_KERNEL_CACHE", cache.path().display());
    let machine = machine.with("CUDA_STAND_IN_TIMES", 1).with("CUDA_STAND_IN_FAIL_KERNEL", kernel);
    machine.example("custom_loop", "--mode single --device cuda")
}

#[test]
fn tuning_leaves_out_a_kernel_that_does_not_compile() {
    let expected = without("no kernel").succeeded().stdout;
    assert!(expected.contains("epoch 1  train loss"), "{expected}");
    assert_eq!(without("reduce_kernel_in").succeeded().stdout, expected);
}

#[test]
fn a_kernel_that_does_not_compile_ends_the_run() {
    for kernel in ["kernel_binop", "slice_kernel", "copy_kernel"] {
        let outcome = without(kernel);
        assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
        check_error(&outcome, &["cuda:0", "error: refused by"]);
    }
}

/// CubeCL does not mark the output of this kernel, which is a part of the gradient, as missing.
#[test]
fn an_atomic_kernel_that_does_not_compile_ends_the_run() {
    let cache = tempfile::tempdir().expect("temporary folder");
    let machine = Machine::new(1).with("BURN_DDP_KERNEL_CACHE", cache.path().display());
    let machine = machine.with("CUDA_STAND_IN_FAIL_KERNEL", "select_assign");
    let [run, text] = ["run", "text"].map(|name| cache.path().join(name));
    std::fs::write(&text, "some text, ".repeat(400)).expect("written");
    let outcome = machine.example(
        "char_gpt",
        &format!(
            "--device cuda --mode single --progress plain --text {} --run-dir {} --batch-size 32 --block-size 12
             --layers 1 --width 24 --heads 2 --max-steps 4 --length 0",
            text.display(),
            run.display(),
        ),
    );
    assert!(outcome.code.is_some_and(|code| code != 0), "{outcome:#?}");
    check_error(&outcome, &["cuda:0", "error: refused by"]);
}

#[test]
fn memory_that_runs_out_ends_the_run() {
    fails("FAIL_ALLOC", [6, 4, 6], &["cuda:", "out of device memory", "smaller batch"]);
}

#[test]
fn a_launch_that_fails_ends_the_run() {
    fails("FAIL_LAUNCH", [150; 3], &["cuda:", "719"]);
}

#[test]
fn a_device_that_is_lost_ends_the_run() {
    fails("LOST_AT", [700, 300, 500], &["cuda:", "719"]);
}
