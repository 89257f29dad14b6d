//! The claims of the course's experiments.

use crate::common::{Outcome, assert_close, command, example, finish, train};

fn run(name: &str, flags: &str) -> Outcome {
    let flags: Vec<&str> = flags.split_whitespace().collect();
    finish(command(&example(name), &flags).spawn().expect("cargo built the examples"))
}

/// The losses of each epoch, and the digest of each rank's parameters.
fn trained(name: &str, flags: &str) -> (Vec<f64>, Vec<String>) {
    let outcome = run(name, &format!("--device cpu {flags}")).succeeded();
    let last = |line: &str| line.split_whitespace().last().expect("a word").to_owned();
    let (losses, digests): (Vec<&str>, Vec<&str>) =
        outcome.stdout.lines().partition(|line| line.starts_with("epoch"));
    let losses = losses.into_iter().map(|line| last(line).parse().expect("a loss")).collect();
    (losses, digests.into_iter().map(last).collect())
}

#[test]
fn ddp_by_hand_follows_one_curve_which_is_the_librarys() {
    let (one, _) = trained("course_ddp", "--mode single");
    assert_eq!(one.len(), 10);
    for ranks in ["2", "3"] {
        let (losses, digests) = trained("course_ddp", &format!("--nproc-per-node {ranks}"));
        assert_close(&format!("{ranks} ranks"), &losses, &one, 2e-6);
        assert!(digests.iter().all(|digest| *digest == digests[0]), "{digests:?}");
    }
    let (library, _) = trained("custom_loop", "--nproc-per-node 2");
    assert_close("the library", &library, &one, 2e-6);
}

#[test]
fn without_a_part_of_ddp_the_ranks_differ_or_learn_less() {
    let (right, _) = trained("course_ddp", "--nproc-per-node 2");
    for (flag, factor) in [("--no-average", 10.0), ("--different-weights", 100.0)] {
        let (losses, digests) = trained("course_ddp", &format!("--nproc-per-node 2 {flag}"));
        assert_ne!(digests[0], digests[1], "{flag}");
        assert!(losses[9] > factor * right[9], "{flag}: {} and {}", losses[9], right[9]);
    }
    let (frozen, digests) = trained("course_ddp", "--nproc-per-node 2 --frozen-epoch");
    assert_eq!(digests[0], digests[1]);
    assert_eq!(frozen[0], right[0]);
    assert_ne!(frozen[1], right[1]);
}

#[test]
fn all_reduce_sums_and_a_mismatch_is_an_error_of_both_ranks() {
    let outcome = run("course_all_reduce", "--device cpu --nproc-per-node 3").succeeded();
    assert_eq!(outcome.stdout.matches("after:  [6.0, 6.0]").count(), 3, "{outcome:#?}");
    let outcome = run("course_all_reduce", "--device cpu --nproc-per-node 2 --mismatch");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for rank in ["error: rank 0: collective mismatch", "error: rank 1: collective mismatch"] {
        assert!(outcome.stderr.contains(rank), "{rank}: {outcome:#?}");
    }
}

#[test]
fn the_ring_sends_the_least_possible() {
    for ranks in [1, 2, 4, 7] {
        let outcome = run("course_ring", &ranks.to_string()).succeeded();
        let sum = |part: usize| (0..ranks).map(|rank| (10 * rank + part) as f32).sum::<f32>();
        let sums: Vec<f32> = (0..ranks).map(sum).collect();
        let expected = format!("-> {sums:?}, {} of {ranks} parts sent", 2 * (ranks - 1));
        assert_eq!(outcome.stdout.matches(&expected).count(), ranks, "{expected}: {outcome:#?}");
    }
}

/// Chance is 10 %. A loss that overflows is an error.
#[test]
fn linear_scaling_without_warm_up_diverges_at_a_high_rate() {
    let accuracy = |scaling: &str| {
        let folder = tempfile::tempdir().expect("temporary folder");
        let outcome = train(&format!(
            "--device cpu --dataset digits --train-limit 8000 --eval-limit 300 --epochs 2 --seed 1 --dropout 0 \
             --threads 1 --nproc-per-node 4 --lr 0.1 --progress plain --scale-lr {scaling} --run-dir {}",
            folder.path().join("run").display()
        ));
        let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("test accuracy "));
        line.map_or(0.0, |text| text.trim_end_matches(" %").parse::<f64>().expect("a number"))
    };
    assert!(accuracy("none") > 80.0);
    assert!(accuracy("linear") < 40.0);
}
