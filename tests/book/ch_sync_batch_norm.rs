//! The claims of the chapter "BatchNorm across ranks".

use crate::common::{Outcome, assert_close, run_example};

fn run(name: &str, flags: &str) -> Outcome {
    run_example(name, flags).succeeded()
}

#[test]
fn converted_modules_use_the_statistics_of_all_ranks() {
    for (ranks, own_variance) in [(2, "1.25"), (4, "0.25")] {
        let outcome = run("sync_bn", &format!("--device cpu --nproc-per-node {ranks}"));
        let own = outcome.stdout.matches(&format!("variance {own_variance},")).count();
        let all = outcome.stdout.matches("all samples: mean 3.50, variance 5.25,").count();
        assert_eq!((own, all), (ranks, ranks), "{outcome:#?}");
    }
    let alone = run("sync_bn", "--mode single");
    assert_eq!(alone.stdout.matches("samples: mean 3.50, variance 5.25,").count(), 2, "{alone:#?}");
}

/// The losses of each epoch.
fn losses(flags: &str) -> Vec<f64> {
    let data = "--dataset subset --train-limit 500 --eval-limit 50";
    let outcome = run("batch_norm", &format!("{data} --device cpu {flags}"));
    let losses =
        outcome.stdout.lines().filter_map(|line| line.split_once("train loss ")).map(|(_, loss)| loss);
    losses.map(|loss| loss.parse().expect("a loss")).collect()
}

#[test]
fn synchronised_losses_equal_those_of_one_rank_with_the_whole_batch() {
    let one = losses("--mode single --batch-size 8");
    assert_eq!(one.len(), 3);
    for (ranks, batch) in [(2, 4), (4, 2)] {
        let world = format!("--nproc-per-node {ranks} --batch-size {batch}");
        assert_close(&world, &losses(&format!("{world} --sync-bn")), &one, 1e-4);
        let plain = losses(&world);
        assert!(plain[2] > 1.2 * one[2], "{world}: {plain:?}, {one:?}");
    }
}
