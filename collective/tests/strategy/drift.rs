//! Replicas that come apart although the settings that are known are the same.

use crate::{Rank, failures, fit_all};
use collective::Error;

/// The momentum is in the optimizer, where the strategy does not see it.
#[test]
fn a_replica_that_drifts_is_named_after_the_epoch() {
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

/// Each rank's BatchNorm has seen other points; the others get rank 0's statistics.
#[test]
fn batch_norm_statistics_may_differ() {
    let told = fit_all(3, |_| Rank { batch_norm: true, ..Rank::default() }, |_, ddp| ddp);
    for rank in &told {
        assert_eq!(rank.failure, None);
        assert_eq!(rank.epochs[1].digest, told[0].epochs[1].digest);
    }
}
