//! Event files of a run: equal to its tables, read by this file and, where it is installed, by TensorBoard.

use crate::common::{
    self, Run, command,
    events::{Scalars, files, histograms, points},
    finish, run_example, trained,
};
use std::path::{Path, PathBuf};

/// 8 steps per epoch with two ranks.
const RUN: &str = "--dataset subset --train-limit 256 --eval-limit 50 --batch-size 16 --threads 1";

/// The scalars that a run writes, with table and column.
const SCALARS: [(&str, &str, &str); 6] = [
    ("train/loss", "steps.csv", "loss"),
    ("train/accuracy", "steps.csv", "accuracy"),
    ("train/lr", "steps.csv", "lr"),
    ("train/samples_per_second", "steps.csv", "samples_per_second"),
    ("test/loss", "epochs.csv", "test_loss"),
    ("test/accuracy", "epochs.csv", "test_accuracy"),
];

fn scalars(run: &Run) -> Scalars {
    points(run, |value| {
        let (_, bits, _) = value.iter().find(|field| field.0 == 2)?;
        Some(f64::from(f32::from_bits(*bits as u32)))
    })
}

/// Panics unless the scalars equal the run's tables at every step.
fn assert_as_in_the_tables(run: &Run, scalars: &Scalars) {
    let steps: Vec<u64> = run.column("steps.csv", "step").iter().map(|step| *step as u64).collect();
    let epochs = run.column("steps.csv", "epoch");
    let last_of = |epoch: &f64| steps[epochs.iter().rposition(|e| e == epoch).expect("a step")];
    let evaluated: Vec<u64> = run.column("epochs.csv", "epoch").iter().map(last_of).collect();
    for (tag, table, column) in SCALARS {
        let points = scalars.get(tag).unwrap_or_else(|| panic!("{tag} is missing: {scalars:?}"));
        let at = if table == "steps.csv" { &steps } else { &evaluated };
        assert_eq!(&points.iter().map(|point| point.0).collect::<Vec<_>>(), at, "{tag}");
        for (point, value) in points.iter().zip(run.column(table, column)) {
            assert!((point.1 - value).abs() <= 1e-6 * value.abs(), "{tag}: {point:?} is {value} in {table}");
        }
    }
}

#[test]
fn events_equal_the_tables() {
    let run = trained(&format!("{RUN} --nproc-per-node 2 --epochs 2"));
    assert_eq!(files(&run).len(), 1, "rank 0 alone writes");
    let scalars = scalars(&run);
    let times = ["seconds", "data_wait_seconds", "gradient_wait_seconds"];
    assert_eq!(scalars.len(), SCALARS.len() + 2 * times.len(), "{:?}", scalars.keys());
    for (rank, column) in [0, 1].into_iter().flat_map(|rank| times.map(|column| (rank, column))) {
        let tag = format!("rank_{rank}/{column}");
        let of_rank: Vec<f64> = run.column("ranks.csv", column).into_iter().skip(rank).step_by(2).collect();
        common::assert_close(
            &tag,
            &scalars[&tag].iter().map(|point| point.1).collect::<Vec<_>>(),
            &of_rank,
            1e-6,
        );
    }
    assert_eq!(scalars["train/loss"].len(), 16);
    assert_as_in_the_tables(&run, &scalars);
}

#[test]
fn metrics_and_callbacks_of_any_model_are_scalars() {
    let run = Run::new();
    let flags = format!("--device cpu --epochs 2 --run-dir {}", run.path.display());
    run_example("regression", &flags).succeeded();
    let scalars = scalars(&run);
    for (tag, table, column) in [
        ("test/loss", "epochs.csv", "test_loss"),
        ("test/mae", "epochs.csv", "test_mae"),
        ("test/max_error", "epochs.csv", "test_max_error"),
        ("train/mae", "steps.csv", "mae"),
    ] {
        let values: Vec<f64> = scalars[tag].iter().map(|point| point.1).collect();
        common::assert_close(tag, &values, &run.column(table, column), 1e-6);
    }
    assert!(!scalars.keys().any(|tag| tag.contains("accuracy")), "{:?}", scalars.keys());
}

/// The metric logger for a burn-train `Learner`, as `custom_learner` uses it.
#[test]
fn a_learner_writes_its_metrics() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = Run::at(folder.path().into());
    let flags = format!("--dir {0}/none --log-dir {0}", folder.path().display());
    let outcome = run_example("custom_learner", &flags);
    let printed: Vec<f64> = outcome
        .succeeded()
        .stdout
        .lines()
        .map(|line| line.split_whitespace().nth(7).expect("a loss").parse().expect("a number"))
        .collect();
    let scalars = scalars(&run);
    assert_eq!(scalars.keys().collect::<Vec<_>>(), ["train/Loss", "train_epoch/Loss", "valid/Loss"]);
    // 1000 points in batches of 48 over both ranks.
    let steps = |tag: &str| scalars[tag].iter().map(|point| point.0).collect::<Vec<_>>();
    assert_eq!(steps("train/Loss"), (1..=210).collect::<Vec<_>>());
    assert_eq!(steps("valid/Loss"), (1..=10).map(|epoch| 21 * epoch).collect::<Vec<_>>());
    assert_eq!(steps("train_epoch/Loss"), steps("valid/Loss"));
    assert_eq!(printed.len(), 10, "one line an epoch");
    for (point, value) in scalars["valid/Loss"].iter().zip(printed) {
        assert!((point.1 - value).abs() <= 1e-6, "{point:?} is printed as {value}");
    }
}

#[test]
fn a_run_in_f16_has_its_loss_scale_and_skipped_steps() {
    let run = trained(&format!("{RUN} --nproc-per-node 2 --precision f16 --train-limit 16 --batch-size 2"));
    let scalars = scalars(&run);
    for (tag, column) in [("train/loss_scale", "loss_scale"), ("train/skipped", "skipped")] {
        let values: Vec<f64> = scalars[tag].iter().map(|point| point.1).collect();
        assert_eq!(values, run.column("steps.csv", column), "{tag}");
    }
    assert_eq!(scalars["train/loss_scale"][0], (1, 65536.0));
}

/// A run of two ranks that stopped at step 6 and resumed from step 2 with different steps 3 to 8.
fn resumed() -> Run {
    let run = trained(&format!("{RUN} --nproc-per-node 2 --max-steps 6 --save-every 2 --keep-last 9"));
    let checkpoint = run.path.join("checkpoints/step-000002");
    let flags = format!("{RUN} --nproc-per-node 2 --resume {} --histograms=4", checkpoint.display());
    let again = common::train(&format!("--device cpu --progress plain {flags}")).succeeded();
    let folder = run.path.join("tensorboard");
    assert!(again.stdout.contains(&format!("tensorboard --logdir {}", folder.display())), "{again:?}");
    run
}

#[test]
fn a_resumed_run_has_one_curve() {
    let run = resumed();
    assert_eq!(files(&run).len(), 2, "one for each process");
    let scalars = scalars(&run);
    assert_eq!(
        scalars["train/loss"].iter().map(|point| point.0).collect::<Vec<_>>(),
        [1, 2, 3, 4, 5, 6, 7, 8]
    );
    assert_as_in_the_tables(&run, &scalars);
}

#[test]
fn histograms_contain_the_gradients_of_the_optimizer() {
    let flags = "--histograms=1 --momentum 0 --lr 0.1 --scale-lr none --max-steps 4 --nproc-per-node 2";
    let sums = histograms(&trained(&format!("{RUN} {flags}")), 4);
    let parameters: Vec<&str> = sums.keys().filter_map(|tag| tag.strip_prefix("parameters/")).collect();
    assert_eq!(parameters.len(), 8, "{:?}", sums.keys());
    for name in parameters {
        let [before, grads] = ["parameters", "gradients"].map(|kind| &sums[&format!("{kind}/{name}")]);
        assert_eq!(grads.iter().map(|point| point.0).collect::<Vec<_>>(), [1, 2, 3, 4], "{name}");
        for (pair, grad) in before.windows(2).zip(grads) {
            // Plain SGD, summed over the parameter.
            let (moved, told) = (pair[1].1 - pair[0].1, -0.1 * grad.1);
            assert!((moved - told).abs() < 1e-4, "{name}: it moved by {moved}, and should by {told}");
        }
    }
    let fc1 = &sums["gradients/fc1.weight"];
    assert!(fc1.iter().any(|point| point.1.abs() > 0.1), "there is something to see: {fc1:?}");
}

/// A Python interpreter with TensorBoard.
fn python() -> Option<PathBuf> {
    let python = std::env::var_os("TENSORBOARD_PYTHON").map_or_else(|| "python3".into(), PathBuf::from);
    let mut import = std::process::Command::new(&python);
    let there = import.args(["-c", "import tensorboard"]).output().is_ok_and(|out| out.status.success());
    if !there {
        eprintln!(
            "SKIPPED: {} has no tensorboard; set TENSORBOARD_PYTHON to a Python that has",
            python.display()
        );
    }
    there.then_some(python)
}

/// Python script that prints the points that TensorBoard's reader finds, as JSON.
const READ: &str = r#"
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1], size_guidance={"scalars": 0, "images": 0, "histograms": 0})
events.Reload()
tags = events.Tags()
print(json.dumps({
    "scalars": {tag: [[e.step, e.value] for e in events.Scalars(tag)] for tag in tags["scalars"]},
    "images": {tag: [[e.step, e.width, e.height] for e in events.Images(tag)] for tag in tags["images"]},
    "histograms": {tag: [[e.step, e.histogram_value.num] for e in events.Histograms(tag)] for tag in tags["histograms"]},
}))
"#;

fn read_by_tensorboard(python: &Path, run: &Run) -> serde_json::Value {
    let mut reader = command(python, &["-c", READ]);
    reader.arg(run.path.join("tensorboard"));
    let outcome = finish(reader.spawn().expect("it was there")).succeeded();
    assert!(!outcome.stderr.contains("oddly"), "{}", outcome.stderr);
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

#[test]
fn tensorboard_itself_reads_a_run() {
    let Some(python) = python() else { return };
    let run = resumed();
    let read = read_by_tensorboard(&python, &run);
    let scalars: Scalars = serde_json::from_value(read["scalars"].clone()).expect("scalars");
    assert_as_in_the_tables(&run, &scalars);
    assert_eq!(scalars, self::scalars(&run), "read as this file reads it");
    let image = &read["images"]["test/misclassified"];
    assert_eq!((&image[0][0], &image[0][1]), (&8.into(), &540.into()), "{image}");
    // fc1 has 9216 × 128 weights; the resumed process wrote steps 4 and 8.
    let histograms = &read["histograms"];
    for kind in ["gradients", "parameters"] {
        let weights = &histograms[format!("{kind}/fc1.weight")];
        assert_eq!(weights, &serde_json::json!([[4, 1_179_648.0], [8, 1_179_648.0]]), "{kind}");
        assert_eq!(histograms[format!("{kind}/fc2.bias")][1][1], 10.0);
    }
}
