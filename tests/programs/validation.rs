//! `--valid-split`: part of the training set decides about checkpoints and early stopping, the test set is evaluated once.

use crate::common::{Run, assert_close, example_command, finish, train, trained};
use std::fs;

const RUN: &str = "--dataset subset --train-limit 200 --eval-limit 50 --dropout 0 --scale-lr none --threads 1
    --valid-split 0.2";

/// A column of `epochs.csv`, as text.
fn cells(run: &Run, column: &str) -> Vec<String> {
    let table = fs::read_to_string(run.path.join("epochs.csv")).expect("a table");
    let mut lines = table.lines();
    let header = lines.next().expect("a header");
    let at = header.split(',').position(|name| name == column).expect("the column");
    lines.map(|line| line.split(',').nth(at).expect("a cell").to_owned()).collect()
}

#[test]
fn the_test_set_is_evaluated_at_the_end_only() {
    let run = trained(&format!("{RUN} --mode single --batch-size 32 --epochs 2"));
    let config = run.json("config.json");
    assert_eq!(
        (&config["train_samples"], &config["valid_samples"], &config["test_samples"]),
        (&160.into(), &40.into(), &50.into())
    );
    assert_eq!(cells(&run, "test_loss"), ["", ""]);
    let (valid, summary) = (run.column("epochs.csv", "valid_loss"), run.summary());
    assert_eq!(valid.len(), 2);
    assert_eq!(summary["valid_loss"], valid[1]);
    assert!(summary["test_loss"].as_f64().expect("a number") > 0.0);
    assert_ne!(summary["test_loss"], summary["valid_loss"]);
    // Callbacks see the test set.
    let matrix = fs::read_to_string(run.path.join("confusion_matrix.csv")).expect("a table");
    let counts = matrix.lines().skip(1).flat_map(|row| row.split(',').skip(1));
    assert_eq!(counts.map(|count| count.parse::<usize>().expect("a count")).sum::<usize>(), 50);
    let report = fs::read_to_string(run.path.join("report.html")).expect("a report");
    assert!(report.contains("validation loss") && report.contains("test loss"), "both results");
}

#[test]
fn a_fast_dev_run_passes_every_phase_and_leaves_no_files() {
    let folder = tempfile::tempdir().expect("temporary folder");
    for (name, flags) in [
        ("mnist_ddp", "--dataset subset --fast-dev-run=2 --nproc-per-node 2"),
        ("regression", "--fast-dev-run --valid-split 0.2 --ema 0.9 --epochs 50"),
        ("regression", "--fast-dev-run --mode dp --device-ids cpu:0,cpu:1"),
    ] {
        let mut program = example_command(name, &format!("--device cpu --progress plain {flags}"));
        program.env("TMPDIR", folder.path()).current_dir(folder.path());
        let stdout = finish(program.spawn().expect("the program was built")).succeeded().stdout;
        let steps = if name == "mnist_ddp" { 2 } else { 3 };
        for line in [&format!("loaded the best checkpoint, of step {steps}\n"), "fast dev run: "] {
            assert!(stdout.contains(line), "{line}: {stdout}");
        }
        let left: Vec<_> = fs::read_dir(folder.path()).expect("a folder").collect();
        let is_left = |entry: &std::io::Result<fs::DirEntry>| {
            let name = entry.as_ref().expect("an entry").file_name();
            name == "runs" || name.to_string_lossy().contains("fast-dev-run")
        };
        assert!(!left.iter().any(is_left), "{left:?}");
    }
}

#[test]
fn the_split_and_its_losses_are_the_same_at_any_world_size() {
    let run = |flags: &str| trained(&format!("{RUN} --epochs 2 {flags}"));
    let single = run("--mode single --batch-size 32");
    for flags in ["--nproc-per-node 2 --batch-size 16", "--mode dp --device-ids cpu:0,cpu:1 --batch-size 32"]
    {
        let other = run(flags);
        let losses = |run: &Run| run.column("epochs.csv", "valid_loss");
        assert_close(&format!("validation losses with {flags}"), &losses(&other), &losses(&single), 1e-5);
        let test = |run: &Run| [run.summary()["test_loss"].as_f64().expect("a number")];
        assert_close(&format!("test loss with {flags}"), &test(&other), &test(&single), 1e-5);
    }
}

/// With a learning rate of 0 the validation loss never improves.
#[test]
fn early_stopping_depends_on_the_validation_set() {
    let run = trained(&format!("{RUN} --mode single --batch-size 32 --epochs 5 --lr 0 --early-stop 1"));
    assert_eq!(run.column("epochs.csv", "valid_loss").len(), 2);
    assert!(run.summary()["test_loss"].is_number(), "the test set is evaluated after an early stop");
}

#[test]
fn a_resumed_run_keeps_its_split() {
    let flags = format!("{RUN} --mode single --batch-size 32");
    let whole = trained(&format!("{flags} --epochs 2"));
    let part = trained(&format!("{flags} --epochs 1"));
    let resume = |flags: &str| {
        train(&format!("--device cpu --progress plain --resume {} --epochs 2 {flags}", part.path.display()))
    };
    let other = RUN.replace("0.2", "0.3");
    resume(&format!("{other} --mode single --batch-size 32")).failed_with(&["--valid-split"]);
    resume(&flags).succeeded();
    assert_eq!(part.digest(), whole.digest());
    assert_eq!(part.summary()["test_loss"], whole.summary()["test_loss"]);
}

#[test]
fn a_fraction_outside_its_range_is_rejected() {
    for bad in ["1", "-0.1", "half"] {
        train(&format!("--valid-split={bad}")).failed_with(&["--valid-split", "from 0 to below 1"]);
    }
}
