//! Overflow of f16 gradients: skipped steps are reported, and their number is bounded.

use super::{Ddp, Rank, failures, fit_all, with};
use burn_ddp_collective::{Error, precision::Precision};

fn half(_: usize, ddp: Ddp) -> Ddp {
    with(ddp, |options| options.reducer.precision = Precision::F16)
}

#[test]
fn skipped_steps_and_the_loss_scale_are_reported() {
    // Only the second batch overflows.
    let factor = |batch| if batch == 2 { 1e30 } else { 1e-3 };
    for size in [1, 2] {
        let rank = |_| Rank { factor, precision: Precision::F16, ..Rank::default() };
        for told in fit_all(size, rank, half) {
            assert_eq!(told.failure, None);
            let steps: Vec<_> = told.steps.iter().take(4).map(|s| (s.loss_scale, s.skipped)).collect();
            let (before, after) = (Some(65536.0), Some(32768.0));
            assert_eq!(steps, [(before, false), (before, true), (after, false), (after, false)]);
            let epochs: Vec<_> = told.epochs.iter().map(|e| (e.skipped_steps, e.loss_scale)).collect();
            assert_eq!(epochs, [(1, after), (0, after)]);
            let [warning] = &told.warnings[..] else { panic!("one warning: {:?}", told.warnings) };
            for part in ["step 2 is skipped", "f16", "65536", "32768"] {
                assert!(warning.contains(part), "{warning} should say {part}");
            }
        }
    }
}

#[test]
fn a_run_that_overflows_in_every_step_ends_with_an_error() {
    for size in [1, 2] {
        let rank = |_| Rank { factor: |_| 1e30, precision: Precision::F16, epochs: 100, ..Rank::default() };
        let told = fit_all(size, rank, half);
        for error in failures(&told) {
            assert!(matches!(error, Error::LossScale { scale } if *scale == 1.0 / 8192.0), "{error}");
        }
        assert!(told.iter().all(|rank| rank.steps.len() == 29 && rank.steps.iter().all(|step| step.skipped)));
    }
}
