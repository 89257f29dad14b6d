//! What a rank's batch weighs in a step whose batches differ in size.

use std::cell::Cell;

thread_local! {
    /// Weight of this thread's batch against the other ranks'; 0 if it must not count.
    static WEIGHT: Cell<f64> = const { Cell::new(1.0) };
}

/// Runs `step`, forward and backward of a loss that is the mean over `samples` of this rank, the
/// gradients of which will be averaged over the `global_samples` of all ranks.
///
/// Backwards, a [`SyncBatchNorm`](super::SyncBatchNorm) adds up the gradients of all ranks. Each is
/// that of its own rank's mean, and only with this weight the sum is that of the mean over all.
/// With 0 `samples` the batch is padding: it adds nothing to the statistics either. Without this
/// function all ranks weigh the same, which is right for batches of one size, and for a loss that
/// is a sum over samples.
///
/// [`DistributedDataParallel`](crate::strategy::DistributedDataParallel) does this itself.
pub fn with_share<R>(samples: usize, global_samples: usize, step: impl FnOnce() -> R) -> R {
    let _before = Before(WEIGHT.replace(samples as f64 / global_samples.max(1) as f64));
    step()
}

/// Puts the weight back, also when a step panics.
struct Before(f64);

impl Drop for Before {
    fn drop(&mut self) {
        // Fails only while the thread ends, and then nobody asks any more.
        let _ = WEIGHT.try_with(|weight| weight.set(self.0));
    }
}

/// What this thread's batch weighs.
pub(super) fn weight() -> f64 {
    WEIGHT.get()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_ends_with_its_step() {
        assert_eq!(weight(), 1.0);
        with_share(1, 4, || {
            assert_eq!(weight(), 0.25);
            with_share(0, 4, || assert_eq!(weight(), 0.0));
            assert_eq!(weight(), 0.25);
        });
        assert!(std::panic::catch_unwind(|| with_share(1, 2, || panic!("a step"))).is_err());
        assert_eq!(weight(), 1.0);
    }
}
