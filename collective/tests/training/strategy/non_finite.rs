//! Losses and gradients that are NaN or infinite.

use super::{Rank, failures, fit_all, with};
use burn_ddp_collective::Error;

/// NaN in the third batch of rank 1.
fn poisoned(rank: usize) -> Rank {
    let factor = |batch| if batch == 3 { f32::NAN } else { 1.0 };
    Rank { factor: if rank == 1 { factor } else { |_| 1.0 }, ..Rank::default() }
}

#[test]
fn a_nan_loss_on_one_rank_ends_the_run_on_all() {
    for size in [2, 3] {
        let told = fit_all(size, poisoned, |_, ddp| ddp);
        for error in failures(&told) {
            let (what, value) = ("training loss".into(), "NaN".into());
            assert_eq!(*error, Error::NonFinite { what, value, step: 3, ranks: vec![1] });
        }
        assert!(told.iter().all(|rank| rank.steps.len() == 2), "the third step is not done");
    }
    // Two batches per step, so that the third is in the second step.
    let told = fit_all(2, poisoned, |_, ddp| with(ddp, |options| options.grad_accum_steps = 2));
    for error in failures(&told) {
        assert!(error.to_string().contains("training loss is NaN in step 2 on rank 1"), "{error}");
    }
}

#[test]
fn a_single_device_is_reported_as_rank_0() {
    let told = fit_all(1, |_| Rank { factor: |_| f32::INFINITY, ..Rank::default() }, |_, ddp| ddp);
    let error = failures(&told)[0].to_string();
    assert!(error.contains("training loss is inf in step 1 on rank 0"), "{error}");
}

/// Each rank's five squares sum to less than 80, and all forty to more than 200.
#[test]
fn a_loss_that_overflows_only_in_the_sum_names_no_rank() {
    let told = fit_all(8, |_| Rank { factor: |_| 2.2e36, batch_size: 5, ..Rank::default() }, |_, ddp| ddp);
    for error in failures(&told) {
        assert!(error.to_string().contains("training loss is inf in step 1;"), "{error}");
    }
}

#[test]
fn a_non_finite_gradient_ends_a_run_with_clipping() {
    let rank = |_| Rank { factor: |batch| if batch == 2 { 0.0 } else { 1.0 }, ..Rank::default() };
    for size in [1, 2] {
        let told = fit_all(size, rank, |_, ddp| with(ddp, |options| options.clip_grad_norm = Some(1.0)));
        for error in failures(&told) {
            assert!(error.to_string().contains("norm of the gradients is NaN in step 2;"), "{error}");
        }
    }
}

#[test]
fn a_non_finite_loss_can_be_allowed() {
    let told = fit_all(2, poisoned, |_, ddp| with(ddp, |options| options.allow_non_finite = true));
    for rank in told {
        assert_eq!(rank.failure, None);
        assert_eq!(rank.epochs.len(), 2);
        assert!(rank.steps[2].loss.is_nan());
    }
}
