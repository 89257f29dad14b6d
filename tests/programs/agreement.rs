//! Ranks with different flags, and non-finite losses: every run ends within seconds with an error that names the
//! cause and the ranks.

use crate::common::{Outcome, Run, launched::launch, mnist, train, trained};
use std::time::Instant;

const SMALL: &str =
    "--device cpu --progress plain --dataset subset --train-limit 320 --eval-limit 20 --batch-size 16";

/// Runs two ranks with `flags`, in which `$RANK` is replaced. Also returns their common run folder.
fn ranks(flags: &str) -> (Outcome, Run) {
    let (program, run) = (mnist(), Run::new());
    let script = format!("exec {} {SMALL} --run-dir {} {flags}", program.display(), run.path.display());
    (launch("--nproc-per-node 2", &script), run)
}

#[test]
fn ranks_with_different_flags_fail_before_the_first_step() {
    for (flags, difference) in [
        ("--lr 0.0$((RANK+5))", "lr is 0.05 on rank 0 and 0.06 on rank 1"),
        ("--seed $((RANK+5))", "seed is 5 on rank 0 and 6 on rank 1"),
        ("--momentum 0.$((RANK+5))", "momentum is 0.5 on rank 0 and 0.6 on rank 1"),
        ("--batch-size $((64 >> RANK))", "batch_size is 64 on rank 0 and 32 on rank 1"),
        ("--max-steps $((RANK+3))", "max_steps is 3 on rank 0 and 4 on rank 1"),
        ("--grad-accum-steps $((RANK+1))", "grad_accum_steps is 1 on rank 0 and 2 on rank 1"),
        ("--train-limit $((RANK+100))", "train_samples is 100 on rank 0 and 101 on rank 1"),
        ("$(test $RANK = 1 && echo --nesterov)", "nesterov is false on rank 0 and true on rank 1"),
        (
            "--grad-compression $(test $RANK = 1 && echo bf16 || echo none)",
            "grad_compression is none on rank 0 and bf16 on rank 1",
        ),
    ] {
        let began = Instant::now();
        let (outcome, run) = ranks(flags);
        assert_eq!(outcome.code, Some(1), "{flags}: {outcome:#?}");
        let wanted = format!("error: rank 0: the ranks have different settings: {difference}");
        assert!(outcome.stderr.contains(&wanted), "{flags} should say `{wanted}`: {}", outcome.stderr);
        assert!(
            !outcome.stderr.contains("error: rank 1"),
            "only one rank reports the error: {}",
            outcome.stderr
        );
        assert!(began.elapsed().as_secs() < 60, "{flags}: only after {:?}", began.elapsed());
        assert!(!run.path.exists(), "{flags}: a run that did not begin leaves no folder");
    }
}

#[test]
fn contradictory_flags_are_reported_by_one_rank() {
    for (flags, named) in [
        ("--nesterov --momentum 0", "--nesterov needs a --momentum above 0"),
        ("--warmup-start-factor 0.5", "--warmup-start-factor needs --warmup-epochs above 0"),
    ] {
        let (outcome, _run) = ranks(flags);
        assert_eq!(outcome.code, Some(1), "{flags}: {outcome:#?}");
        assert!(outcome.stderr.contains(&format!("error: rank 0: {named}")), "{flags}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains("error: rank 1"), "{flags}: {}", outcome.stderr);
    }
}

#[test]
fn per_rank_settings_may_differ() {
    let flags = "--max-steps 2 --threads $((RANK+1)) --workers $((RANK+1))";
    let (outcome, run) = ranks(flags);
    outcome.succeeded();
    assert_eq!(run.losses().len(), 2);
}

#[test]
fn a_training_loss_that_is_not_finite_ends_the_run() {
    for (world, named) in
        [("--mode single", "step 2 on rank 0"), ("--nproc-per-node 2", "step 2 on ranks 0, 1")]
    {
        let run = Run::new();
        let path = &run.path;
        let outcome =
            train(&format!("{SMALL} {world} --lr 1e20 --save-every 1 --run-dir {}", path.display()));
        outcome.failed_with(&["the training loss is NaN in", named, "--allow-nan"]);
        assert_eq!(outcome.stderr.matches("training loss").count(), 1, "{}", outcome.stderr);
        assert!(!path.join("checkpoints/step-000002").exists(), "nothing is kept of a step that failed");
        assert!(!path.join("summary.json").exists());
        let losses = run.losses();
        assert!(losses.len() == 1 && losses[0].is_finite(), "{losses:?}");
    }
}

#[test]
fn a_non_finite_loss_is_allowed_by_a_flag() {
    let run = trained(
        "--dataset subset --train-limit 320 --eval-limit 20 --nproc-per-node 2 --lr 1e20 --allow-nan",
    );
    assert!(run.losses()[1].is_nan(), "{:?}", run.losses());
    assert!(run.path.join("report.html").exists());
}

#[test]
fn skipped_steps_are_shown_and_counted() {
    // After the first step the weights exceed the range of f16.
    let flags = "--precision f16 --lr 1e20 --train-limit 128 --batch-size 1 --allow-nan --max-steps 5";
    let (outcome, run) = ranks(flags);
    let outcome = outcome.succeeded();
    let warning =
        "step 2 is skipped, because its gradients overflow f16 at loss scale 65536; the next scale is 32768";
    assert_eq!(outcome.stderr.matches("is skipped").count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(warning), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("  4 step(s) skipped, loss scale 4096\n"), "{}", outcome.stdout);
    assert_eq!(run.column("steps.csv", "skipped"), [0.0, 1.0, 1.0, 1.0, 1.0]);
    assert_eq!(run.column("steps.csv", "loss_scale"), [65536.0, 65536.0, 32768.0, 16384.0, 8192.0]);
}

#[test]
fn overflow_of_f16_in_every_step_ends_the_run() {
    // After the first update the weights exceed the range of f16.
    let flags = "--precision f16 --lr 1e20 --train-limit 128 --batch-size 1 --allow-nan --network lenet";
    let (outcome, run) = ranks(flags);
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    for part in
        ["error: rank 0: precision f16", "the loss scale has fallen to", "warning: step ", "is skipped"]
    {
        assert!(outcome.stderr.contains(part), "should say `{part}`: {}", outcome.stderr);
    }
    let (scales, skipped) = (run.column("steps.csv", "loss_scale"), run.column("steps.csv", "skipped"));
    let longest = skipped.iter().rev().take_while(|step| **step == 1.0).count();
    assert!((20..=40).contains(&longest), "{skipped:?}");
    for (pair, skipped) in scales.windows(2).zip(&skipped) {
        assert_eq!(pair[1], if *skipped == 1.0 { pair[0] / 2.0 } else { pair[0] });
    }
}
