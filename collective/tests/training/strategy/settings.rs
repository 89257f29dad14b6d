//! Ranks whose settings differ, in a user's program.

use super::{Ddp, Rank, failures, fit_all, with};
use burn_ddp_collective::{Error, strategy::Checkpoints};

/// Fails unless both ranks report exactly this setting, and neither made a step.
fn assert_named(
    rank: impl Fn(usize) -> Rank + Sync,
    set: impl Fn(usize, Ddp) -> Ddp + Sync,
    wanted: &[&str],
) {
    let told = fit_all(2, rank, set);
    for error in failures(&told) {
        let Error::SettingsDiffer { differences } = error else { panic!("{error}") };
        let shown: Vec<String> = differences.iter().map(ToString::to_string).collect();
        assert_eq!(shown, wanted);
    }
    assert!(told.iter().all(|rank| rank.steps.is_empty()));
}

/// Checks a setting that only the strategy has.
fn assert_set(wanted: &str, set: impl Fn(usize, Ddp) -> Ddp + Sync) {
    assert_named(|_| Rank::default(), set, &[wanted]);
}

#[test]
fn settings_of_the_strategy_are_compared() {
    assert_set("accumulation is 1 on rank 0 and 2 on rank 1", |rank, ddp| {
        with(ddp, |options| options.grad_accum_steps = 1 + rank)
    });
    assert_set("max_steps is none on rank 0 and 7 on rank 1", |rank, ddp| {
        ddp.with_max_steps((rank == 1).then_some(7))
    });
    assert_set("clip is 0.5 on rank 0 and 1.5 on rank 1", |rank, ddp| {
        with(ddp, |options| options.clip_grad_norm = Some(rank as f64 + 0.5))
    });
    assert_set("seed is none on rank 0 and 3 on rank 1", |rank, ddp| {
        with(ddp, |options| options.seed = (rank == 1).then_some(3))
    });
    assert_set("non-finite loss is an error on rank 0 and allowed on rank 1", |rank, ddp| {
        with(ddp, |options| options.allow_non_finite = rank == 1)
    });
    assert_set("checkpoints is none on rank 0 and after every epoch on rank 1", |rank, ddp| match rank {
        0 => ddp,
        _ => ddp.with_checkpoints(Checkpoints::default()),
    });
    assert_set("compression is none on rank 0 and bf16 on rank 1", |rank, ddp| {
        let hook = burn_ddp_collective::gradient::HalfPrecision::Bf16;
        let hook = (rank == 1).then(|| std::sync::Arc::new(hook) as _);
        with(ddp, |options| options.reducer.hook = hook)
    });
}

#[test]
fn settings_of_the_learner_and_the_loaders_are_compared() {
    let lr = |rank| Rank { lr: 0.01 * (rank + 1) as f64, ..Rank::default() };
    let rates = "learning rate (steps 1, 10, 100) is 0.01, 0.01 on rank 0 and 0.02, 0.02 on rank 1";
    assert_named(lr, |_, ddp| ddp, &[rates]);
    // Four and five points per rank give the same number of steps.
    let batch_size = |rank| Rank { batch_size: 4 + rank, epochs: 1, ..Rank::default() };
    let told = fit_all(2, batch_size, |_, ddp| ddp);
    for error in failures(&told) {
        assert!(error.to_string().contains("training batch size is 4 on rank 0 and 5 on rank 1"), "{error}");
    }
    let epochs = |rank| Rank { epochs: 3 + rank, ..Rank::default() };
    assert_named(epochs, |_, ddp| ddp, &["epochs is 3 on rank 0 and 4 on rank 1"]);
}

#[test]
fn a_different_model_is_named_by_its_first_parameter() {
    let told = fit_all(2, |rank| Rank { batch_norm: rank == 1, ..Rank::default() }, |_, ddp| ddp);
    for error in failures(&told) {
        let text = error.to_string();
        for part in ["different models", "linear.weight [1, 1]", "rank 0", "norm.gamma [1]", "rank 1"] {
            assert!(text.contains(part), "{text} should say {part}");
        }
    }
}

#[test]
fn burn_trains_checkpointers_do_not_store_a_sharded_optimizer() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = |size, shard_optimizer| {
        let checkpoints = || Some(folder.path().join(format!("{size} {shard_optimizer}")));
        let shard = |_, ddp| with(ddp, |options| options.reducer.shard_optimizer = shard_optimizer);
        fit_all(size, |_| Rank { checkpoints: checkpoints(), ..Rank::default() }, shard)
    };
    for error in failures(&run(2, true)) {
        assert!(error.to_string().contains("one rank's part of a sharded optimizer"), "{error}");
    }
    assert!(run(2, false).iter().all(|rank| rank.failure.is_none()));
    let alone = run(1, true);
    assert!(alone[0].failure.is_none());
    assert!(alone[0].warnings.iter().any(|warning| warning.contains("no effect on one rank")));
}
