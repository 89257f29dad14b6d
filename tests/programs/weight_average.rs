//! `--ema` and `--load-best`: the weights that are evaluated, saved and exported.

use crate::{
    common::{Run, assert_close},
    metrics::{forecast, forecaster},
};
use std::{fs, path::Path};

/// Loss on the test set of the weights in `weights`.
fn tested(weights: &Path) -> f64 {
    let flags = format!("--mode single --lr 0 --max-steps 1 --init-from {}", weights.display());
    forecast(&flags).column("epochs.csv", "test_loss")[0]
}

fn summary(run: &Run, name: &str) -> f64 {
    run.summary()[name].as_f64().expect("a number")
}

#[test]
fn the_average_is_evaluated_saved_and_resumed() {
    let flags = "--lr 0.01 --ema 0.9";
    let whole = forecast(&format!("{flags} --epochs 3"));
    let plain = forecast("--lr 0.01 --epochs 3");
    assert_eq!(whole.losses(), plain.losses(), "training does not use the average");
    let losses = whole.column("epochs.csv", "test_loss");
    assert_ne!(losses, plain.column("epochs.csv", "test_loss"));
    let last = whole.path.join("checkpoints/last");
    assert_ne!(
        fs::read(last.join("ema.bpk")).expect("an average"),
        fs::read(last.join("model.bpk")).expect("it")
    );
    for (name, weights, wanted) in [
        ("run", whole.path.clone(), losses[2]),
        ("checkpoint", last.clone(), losses[2]),
        ("raw", last.join("model.bpk"), summary(&plain, "test_loss")),
    ] {
        assert_close(name, &[tested(&weights)], &[wanted], 1e-7);
    }
    let parts = forecast(&format!("{flags} --max-steps 11"));
    forecaster(&parts, &format!("{flags} --epochs 3 --resume")).succeeded();
    assert_eq!(parts.column("epochs.csv", "test_loss"), losses, "the same bits");
    forecaster(&parts, "--lr 0.01 --epochs 4 --resume").failed_with(&["--ema 0.9, not none"]);
    for mode in [
        "--mode single --batch-size 128 --lr 0.02",
        "--mode dp --device-ids cpu:0,cpu:1 --batch-size 128 --lr 0.02",
    ] {
        let other = forecast(&format!("--ema 0.9 --epochs 3 {mode}"));
        assert_close(mode, &other.column("epochs.csv", "test_loss"), &losses, 1e-4);
    }
}

#[test]
fn the_best_checkpoint_is_loaded_and_tested_at_the_end() {
    for (flags, set) in [("--lr 0.5 --valid-split 0.2", "valid"), ("--lr 1 --ema 0.5", "test")] {
        let run = Run::new();
        let stdout = forecaster(&run, &format!("--epochs 4 --load-best {flags}")).succeeded().stdout;
        let losses = run.column("epochs.csv", &format!("{set}_loss"));
        let best = (0..4).min_by(|a, b| losses[*a].total_cmp(&losses[*b])).expect("four epochs");
        assert!(best < 3, "the last epoch should not be the best one: {losses:?}");
        let steps =
            run.column("steps.csv", "epoch").iter().filter(|epoch| **epoch <= best as f64 + 1.0).count();
        let line = format!("loaded the best checkpoint, of step {steps}\n");
        assert!(stdout.contains(&line), "{line} {losses:?} {stdout}");
        let loss = summary(&run, "test_loss");
        assert_close(set, &[tested(&run.path)], &[loss], 1e-7);
        if set == "test" {
            assert_close(set, &[loss], &[losses[best]], 1e-7);
        }
    }
}
