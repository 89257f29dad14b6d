//! The claims of the course's experiments.

use crate::common::{Run, assert_close, run_example, train};

/// Flags for little data.
const LITTLE: &str = "--dataset subset --train-limit 640 --eval-limit 100 --epochs 2";

/// The losses of each epoch, and the digest of each rank's parameters.
fn trained(name: &str, flags: &str) -> (Vec<f64>, Vec<String>) {
    let outcome = run_example(name, &format!("{LITTLE} {flags}")).succeeded();
    let last = |start: &str| -> Vec<String> {
        let lines = outcome.stdout.lines().filter(|line| line.starts_with(start));
        lines.map(|line| line.split_whitespace().last().expect("a word").to_owned()).collect()
    };
    (last("epoch").iter().map(|loss| loss.parse().expect("a loss")).collect(), last("rank"))
}

#[test]
fn every_stage_follows_one_curve() {
    let (one, _) = trained("one_device", "");
    assert_eq!(one.len(), 2);
    assert!(one[1] < one[0], "{one:?}");
    let by_hand = [1, 2, 3].map(|ranks: usize| {
        let (losses, digests) = trained("ddp_by_hand", &format!("--device cpu --nproc-per-node {ranks}"));
        assert_close(&format!("{ranks} ranks"), &losses, &one, 1e-4);
        assert_eq!(digests, vec![digests[0].clone(); ranks]);
        (losses, digests)
    });
    for flags in ["--mode single", "--mode dp --device-ids cpu:0,cpu:1"] {
        assert_close(flags, &trained("ddp", flags).0, &one, 1e-4);
    }
    assert_eq!(trained("ddp", "--device cpu --nproc-per-node 2"), by_hand[1]);
}

#[test]
fn without_a_part_of_ddp_the_ranks_differ() {
    let (right, _) = trained("ddp_by_hand", "--device cpu --nproc-per-node 2");
    for flag in ["--no-average", "--different-weights"] {
        let (losses, digests) = trained("ddp_by_hand", &format!("--device cpu --nproc-per-node 2 {flag}"));
        assert_ne!(digests[0], digests[1], "{flag}");
        // Neither an error nor the loss shows it.
        assert!(losses[1] < losses[0], "{flag}: {losses:?}");
    }
    let (frozen, digests) = trained("ddp_by_hand", "--device cpu --nproc-per-node 2 --frozen-epoch");
    assert_eq!(digests[0], digests[1]);
    assert_eq!(frozen[0], right[0]);
    assert_ne!(frozen[1], right[1]);
}

#[test]
fn ranks_are_numbered_by_environment_variables() {
    let outcome = run_example("ranks", "--device cpu --nproc-per-node 3").succeeded();
    for rank in 0..3 {
        let line = format!("rank {rank} of 3, local rank {rank} of 3, device cpu");
        assert!(outcome.stdout.contains(&line), "{outcome:#?}");
    }
}

#[test]
fn all_reduce_sums_and_a_mismatch_is_an_error_of_both_ranks() {
    let outcome = run_example("first_all_reduce", "--device cpu --nproc-per-node 3").succeeded();
    assert_eq!(outcome.stdout.matches("after:  [6.0, 6.0]").count(), 3, "{outcome:#?}");
    let outcome = run_example("first_all_reduce", "--device cpu --nproc-per-node 2 --mismatch");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for rank in ["error: rank 0: collective mismatch", "error: rank 1: collective mismatch"] {
        assert!(outcome.stderr.contains(rank), "{rank}: {outcome:#?}");
    }
}

#[test]
fn the_ring_sends_the_least_possible() {
    for ranks in [1, 2, 4, 7] {
        let outcome = run_example("ring", &ranks.to_string()).succeeded();
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
        let run = Run::new();
        let outcome = train(&format!(
            "--device cpu --dataset subset --eval-limit 300 --epochs 1 --seed 1 --dropout 0 \
             --threads 1 --nproc-per-node 4 --lr 0.1 --progress plain --scale-lr {scaling} --run-dir {}",
            run.path.display()
        ));
        let line = outcome.stdout.lines().find_map(|line| line.strip_prefix("test accuracy "));
        line.map_or(0.0, |text| text.trim_end_matches(" %").parse::<f64>().expect("a number"))
    };
    assert!(accuracy("none") > 80.0);
    assert!(accuracy("linear") < 40.0);
}

#[test]
fn a_model_of_your_own_trains_in_every_mode_and_precision() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let table = folder.path().join("points.csv");
    let row = |i: i32| {
        let angle = f64::from(i) * 2.4;
        format!("{},{},{}\n", angle.cos() + f64::from(i % 3), angle.sin(), i % 3)
    };
    std::fs::write(&table, (0..240).map(row).collect::<String>()).expect("written");
    let losses = |way: &str, precision: &str| {
        let path = folder.path().join(format!("{precision}-{}", way.replace(' ', "-")));
        let flags = "--epochs 2 --lr 0.01 --scale-lr none --no-shuffle --progress plain";
        let files = format!("--data {} --run-dir {}", table.display(), path.display());
        run_example("your_model", &format!("{flags} {files} {way} --precision {precision}")).succeeded();
        Run::at(path).losses()
    };
    let single = "--mode single --batch-size 32";
    let exact = losses(single, "f32");
    assert!(exact.len() == 12 && exact[11] < exact[0] - 0.05, "{exact:?}");
    for precision in ["bf16", "f16"] {
        for way in [
            single,
            "--mode dp --device-ids cpu:0,cpu:1 --batch-size 32",
            "--nproc-per-node 2 --device cpu --batch-size 16",
        ] {
            let half = losses(way, precision);
            assert_close(&format!("{way} in {precision}"), &half, &exact, 0.02);
            assert_ne!(half, exact, "{way} in {precision}");
        }
    }
}
