//! The claims of the chapter "Metrics that are exact".

use crate::common::{Outcome, run_example};

fn metric(flags: &str) -> Outcome {
    run_example("metric", flags)
}

#[test]
fn sums_are_exact_and_the_mean_of_means_is_not() {
    let worlds = [
        ("--mode single", "0.730000"),
        ("--device cpu --nproc-per-node 2", "0.692857"),
        ("--device cpu --nproc-per-node 3", "0.666667"),
        ("--device cpu --nproc-per-node 4", "NaN"),
    ];
    for (world, mean_of_means) in worlds {
        let outcome = metric(world).succeeded();
        let lines: Vec<&str> = outcome.stdout.lines().collect();
        assert!(lines.contains(&"accuracy 0.730000"), "{world}: {lines:?}");
        let wrong = format!("mean of the ranks' accuracies {mean_of_means}");
        assert!(lines.contains(&&*wrong), "{world}: {lines:?}");
    }
}

#[test]
fn joining_after_every_batch_fails_if_ranks_have_different_numbers_of_batches() {
    let alone = metric("--mode single --every-batch").succeeded();
    assert!(alone.stdout.contains("accuracy 0.730000"), "{alone:#?}");
    let outcome = metric("--device cpu --nproc-per-node 2 --every-batch");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for part in [
        "error: rank 0: collective mismatch: rank 0 called all_reduce",
        "error: rank 1: collective mismatch: rank 0 called all_reduce",
        "(2 x F64, Sum), but rank 1 called all_reduce",
        "(1 x F64, Mean)",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:#?}");
    }
}
