//! The examples on which users base their programs.

use crate::common::{assert_close, example, launched::launch, run_example};
use std::{fs, path::Path};

/// Train and test losses of each epoch that `custom_learner` prints.
fn losses(ranks: usize) -> Vec<f64> {
    let folder = tempfile::tempdir().expect("temporary folder");
    let dir = folder.path().join("burn-train");
    let script = format!("exec {} --dir {}", example("custom_learner").display(), dir.display());
    let outcome = launch(&format!("--nproc-per-node {ranks}"), &script).succeeded();
    assert_eq!(outcome.stdout.matches("Learner Summary").count(), 1, "rank 0 alone prints: {outcome:#?}");
    let log = fs::read_to_string(dir.join("train/epoch-1/Loss.log")).expect("burn-train's log");
    assert_eq!(log.lines().count(), 22, "rank 0 alone writes 21 steps and their mean: {log}");
    let numbers = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!((words[0], words[2], words[5]), ("epoch", "train", "valid"), "{line}");
        [words[4], words[7]].map(|word| word.parse::<f64>().expect("a number"))
    };
    let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix("[rank0] "));
    lines.filter(|line| line.starts_with("epoch")).flat_map(numbers).collect()
}

#[test]
fn a_custom_model_follows_one_trajectory_at_any_world_size() {
    let one = losses(1);
    assert_eq!(one.len(), 20, "only rank 0 prints: {one:?}");
    assert!(one[18] < one[0] / 5.0, "it learns: {one:?}");
    for ranks in [2, 3] {
        assert_close(&format!("losses at {ranks} ranks"), &losses(ranks), &one, 2e-5);
    }
}

/// Train losses of each epoch that `custom_loop` prints.
fn loop_losses(flags: &str) -> Vec<f64> {
    let outcome = run_example("custom_loop", &format!("--device cpu {flags}")).succeeded();
    let number =
        |line: &str| line.split_whitespace().last().expect("a loss").parse::<f64>().expect("a number");
    outcome.stdout.lines().map(number).collect()
}

#[test]
fn one_loop_supports_a_device_replicas_and_ranks() {
    let one = loop_losses("--mode single");
    assert_eq!(one.len(), 10, "only rank 0 prints: {one:?}");
    assert!(one[9] < one[0] / 50.0, "it learns: {one:?}");
    assert_eq!(one[9], 0.000068, "the number of the chapter on DataParallel");
    for (flags, is_equal) in [
        ("", true),
        ("--nproc-per-node 3", false),
        ("--mode dp --device-ids cpu:0,cpu:1", true),
        ("--mode dp --device-ids cpu:0,cpu:1,cpu:2", false),
    ] {
        let losses = loop_losses(flags);
        assert_close(&format!("custom_loop {flags}"), &losses, &one, 2e-5);
        assert!(!is_equal || losses[9] == one[9], "custom_loop {flags}: {losses:?}");
    }
    let text = include_str!("../../../examples/custom_loop.rs");
    assert!(text.lines().filter(|line| !line.contains("ANCHOR")).count() <= 60);
}

#[test]
fn a_replayed_step_continues_from_the_previous_one() {
    // A CPU has no graphs: the recorded closure is called again.
    let outcome = run_example("graph_replay", "--mode single --device cpu").succeeded();
    let lines: Vec<&str> = outcome.stdout.lines().filter(|line| line.starts_with("step ")).collect();
    assert_eq!(lines.len(), 5, "{outcome:#?}");
    assert!(outcome.stdout.contains("CUDA graph: false"), "{outcome:#?}");
    let loss = |line: &str, which: &str| -> f64 {
        let mut words = line.split_whitespace().skip_while(|word| *word != which);
        words.nth(1).and_then(|word| word.parse().ok()).expect("a loss")
    };
    for line in &lines {
        assert_eq!(loss(line, "computed"), loss(line, "replayed"), "{line}");
    }
    assert!(loss(lines[4], "replayed") < loss(lines[0], "replayed") / 50.0, "it learns: {lines:?}");
}

#[test]
fn the_book_states_how_much_of_a_burn_train_program_changes() {
    let text = include_str!("../../../examples/custom_learner.rs");
    let added = text.lines().filter(|line| line.contains("// DDP") || line.contains("/* DDP */")).count();
    let removed = text.lines().filter(|line| line.contains("// alone:")).count();
    let claim = format!("{removed} lines removed and {added} added");
    for page in ["README.md", "book/src/your-own-model.md", "book/src/levels.md"] {
        let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(page)).expect("a page");
        assert!(text.contains(&claim), "{page} should say: {claim}");
    }
}

#[test]
fn the_users_part_of_the_example_is_short() {
    let text = include_str!("../../../examples/custom_learner.rs");
    let body = text.split_once("#[derive(Module").expect("the model").1;
    let lines = body.lines().filter(|line| !line.trim().is_empty() && !line.trim().starts_with("//")).count();
    assert!(lines <= 80, "{lines} lines");
}

#[test]
fn collectives_need_no_training() {
    let outcome = run_example("all_reduce", "").succeeded();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(
        lines[0],
        r#"sum [3.0, 3.0] over ["rank 0", "rank 1", "rank 2"]; broadcast from rank 2: rank 2"#
    );
    // (1 + 4 + 9) / 3. In backward the ranks' gradients are averaged as well; that of x² at 1 is 2.
    assert!(lines[1].starts_with("mean of squares 4.66666"), "{}", lines[1]);
    assert!(lines[1].contains("gradient on rank 0 Some(2"), "{}", lines[1]);
}
