//! Driver calls of a training step.
//!
//! A step must not wait for its own work, because the device would be idle until the next launch.

use crate::{
    kernel_cache::lines,
    stand_in::{Machine, SMALL},
};
use std::collections::BTreeMap;

/// Number of calls of each kind.
type Counts = BTreeMap<String, f64>;

/// Counts of all processes of a run of `steps` steps.
fn counts(flags: &str, steps: usize) -> Counts {
    let folder = tempfile::tempdir().expect("temporary folder");
    let path = folder.path().join("counts");
    let machine = Machine::new(2).with("CUDA_STAND_IN_COUNTS", path.display());
    machine.trained(&format!("{SMALL} --train-limit 160 --batch-size 8 --max-steps {steps} {flags}"));
    let mut counts = Counts::new();
    for line in lines(&path) {
        let (what, number) = line.rsplit_once(' ').expect("what and how many");
        *counts.entry(what.into()).or_default() += number.parse::<f64>().expect("a number");
    }
    counts
}

/// Checks the calls per step and rank, once everything is compiled and cached.
///
/// On a loaded machine CubeCL may measure the device more often in one run than in another. One matching pair of runs
/// out of three suffices.
fn assert_per_step(flags: &str, ranks: usize, right: impl Fn(&dyn Fn(&str) -> f64) -> bool) {
    counts(flags, STEPS[1]);
    let pairs = (0..3).any(|_| right(&per_step(flags, ranks)));
    assert!(pairs, "{flags}: the counts of three pairs of runs are wrong");
}

/// Number of steps of the short and the long run.
const STEPS: [usize; 2] = [4, 8];

/// Differences between a short and a long run, per step and rank.
fn per_step(flags: &str, ranks: usize) -> impl Fn(&str) -> f64 {
    let [few, many] = STEPS.map(|steps| counts(flags, steps));
    let of = |counts: &Counts, what: &str| counts.get(what).copied().unwrap_or(0.0);
    let difference =
        move |what: &str| (of(&many, what) - of(&few, what)) / ((STEPS[1] - STEPS[0]) * ranks) as f64;
    let shown = ["launches", "uploads", "downloads", "synchronisations", "drains", "allocations"];
    println!("{flags}: {}", shown.map(|what| format!("{} {what}", difference(what))).join(", "));
    difference
}

#[test]
fn a_step_on_one_device_waits_only_for_the_previous_one() {
    for (flags, launches, uploads) in [
        ("--mode single --network lenet", 51.0, 2.5),
        ("--mode ddp --nproc-per-node 1 --network lenet", 51.0, 2.5),
        ("--mode single --data-on-device", 51.0, 1.5),
    ] {
        assert_per_step(flags, 1, |step| {
            (step("downloads"), step("synchronisations"), step("drains")) == (1.0, 1.0, 0.0)
                && (0.0..=uploads).contains(&step("uploads"))
                && (0.0..=launches).contains(&step("launches"))
        });
    }
}

#[test]
fn clipping_accumulation_and_augmentation_add_no_waits() {
    let flags =
        "--mode single --network lenet --clip-grad-norm 0.5 --grad-accum-steps 2 --augment shift,elastic";
    // Totals and norm are copied together. Some steps also wait for an earlier upload.
    assert_per_step(flags, 1, |step| {
        (step("downloads"), step("synchronisations").round(), step("drains").round()) == (2.0, 1.0, 0.0)
    });
}

#[test]
fn ranks_with_nccl_do_not_wait_for_their_own_step() {
    let flags = "--mode ddp --nproc-per-node 2 --transport nccl --network lenet --clip-grad-norm 0.5";
    // The number of waits at the start of two ranks differs by one or two from run to run.
    assert_per_step(flags, 2, |step| {
        (step("downloads"), step("synchronisations").round(), step("drains").round()) == (2.0, 1.0, 0.0)
            && (0.0..=64.0).contains(&step("launches"))
    });
}
