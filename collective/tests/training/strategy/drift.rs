//! Replicas that diverge although the compared settings are equal.

use super::{Rank, failures, fit_all};
use burn_ddp_collective::Error;

/// The momentum belongs to the optimizer, which the strategy does not compare.
#[test]
fn a_diverged_replica_is_named_after_the_epoch() {
    for batch_norm in [false, true] {
        let rank = |rank| {
            let momentum = if rank == 2 { 0.5 } else { 0.9 };
            Rank { momentum, batch_norm, ..Rank::default() }
        };
        let told = fit_all(3, rank, |_, ddp| ddp);
        for error in failures(&told) {
            let Error::Diverged { when, ranks } = error else { panic!("{error}") };
            assert_eq!((when.as_str(), ranks.as_slice()), ("after epoch 1", &[2][..]));
        }
        assert!(told.iter().all(|rank| rank.epochs.is_empty() && !rank.steps.is_empty()));
    }
}

/// Each rank's BatchNorm has processed different samples; rank 0's statistics are copied to the others.
#[test]
fn batch_norm_statistics_may_differ() {
    let told = fit_all(3, |_| Rank { batch_norm: true, ..Rank::default() }, |_, ddp| ddp);
    for rank in &told {
        assert_eq!(rank.failure, None);
        assert_eq!(rank.epochs[1].digest, told[0].epochs[1].digest);
    }
}
