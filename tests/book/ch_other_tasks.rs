//! The claims of the chapter "Other tasks", and its schedule.

use crate::common::run_example;
use burn::lr_scheduler::LrScheduler;
use burn_ddp::{config::learning_rate::LrPlan, lr::FnLr};

// ANCHOR: schedule
fn inverse_sqrt(plan: LrPlan) -> FnLr {
    let warmup = plan.epoch_steps as f64;
    FnLr::new(move |step| {
        let time = step as f64 / warmup;
        plan.lr * time.min(1.0 / time.sqrt())
    })
}
// ANCHOR_END: schedule

#[test]
fn the_rate_rises_for_an_epoch_and_falls_to_half_in_four() {
    let mut schedule = inverse_sqrt(LrPlan { lr: 0.1, epoch_steps: 10, total_steps: 100 });
    let rates: Vec<f64> = (0..40).map(|_| schedule.step()).collect();
    for (step, rate) in [(1, 0.01), (5, 0.05), (10, 0.1), (40, 0.05)] {
        assert!((rates[step - 1] - rate).abs() < 1e-12, "step {step}: {}", rates[step - 1]);
    }
}

/// The number after the last `name` that a program prints.
fn last(output: &str, name: &str) -> f64 {
    let number = output.rsplit(name).next().and_then(|rest| rest.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("no {name}: {output}"))
}

/// The test error of `regression` on two ranks.
fn error(flags: &str) -> f64 {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = format!("--run-dir {}/run {flags}", folder.path().display());
    last(
        &run_example("regression", &format!("--device cpu --progress plain {run}")).succeeded().stdout,
        "mae",
    )
}

#[test]
fn a_lower_rate_and_a_short_average_reduce_the_error() {
    let [constant, plateau] = ["", "--reduce-lr-on-plateau 0.5:2"]
        .map(|schedule| error(&format!("--epochs 40 --lr 0.05 {schedule}")));
    assert!(plateau < constant / 2.0, "{plateau} is not less than half of {constant}");
    let averages = ["--ema 0.9", "", "--ema 0.99", "--ema 0.999"];
    let errors = averages.map(|average| error(&format!("--epochs 20 --lr 0.02 {average}")));
    assert!(errors.is_sorted(), "{errors:?}");
}

#[test]
fn a_generator_approaches_the_ring() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let distance = |epochs: usize| {
        let flags = format!("--device cpu --epochs {epochs} --state {}/gan.ckpt", folder.path().display());
        last(&run_example("gan", &flags).succeeded().stdout, "from the ring")
    };
    let distances = [0, 20, 60].map(distance);
    assert!(distances[1] < distances[0] / 2.0 && distances[2] < distances[1], "{distances:?}");
}
