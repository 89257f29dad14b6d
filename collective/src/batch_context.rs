//! What operations inside a model need to know about the batch they compute: its weight against the other ranks'
//! batches, for SyncBatchNorm, and the loss scale, for [`precision::backward`](crate::precision::backward).
//!
//! Both are called from a user's model, through signatures of Burn that have no room for it, so they read it from
//! the thread. Only this crate sets it, for the duration of one forward and backward pass.

use std::cell::Cell;

/// The context of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchContext {
    weight: f64,
    loss_scale: f32,
    /// Whether a loss was scaled.
    scaled: bool,
}

thread_local! {
    static CURRENT: Cell<BatchContext> = const { Cell::new(BatchContext::ALONE) };
}

impl BatchContext {
    /// Outside a scope: batches of all ranks weigh the same, and losses are not scaled.
    const ALONE: Self = BatchContext { weight: 1.0, loss_scale: 1.0, scaled: false };

    /// A batch whose loss is the mean over `samples`, and whose gradients are averaged over `global_samples` of all
    /// ranks. With 0 `samples` it is padding.
    pub fn new(samples: usize, global_samples: usize, loss_scale: f32) -> Self {
        Self { weight: samples as f64 / global_samples.max(1) as f64, loss_scale, scaled: false }
    }

    /// Runs `act` in this context. Also returns whether `act` scaled a loss.
    pub fn scope<R>(self, act: impl FnOnce() -> R) -> (R, bool) {
        let _outer = Restore(CURRENT.replace(self));
        let result = act();
        (result, CURRENT.get().scaled)
    }
}

/// Restores the outer context, also after a panic.
struct Restore(BatchContext);

impl Drop for Restore {
    fn drop(&mut self) {
        // Fails only while the thread ends.
        let _ = CURRENT.try_with(|current| current.set(self.0));
    }
}

/// The weight of this thread's batch against the other ranks' batches; 0 if it does not count.
pub(crate) fn weight() -> f64 {
    CURRENT.get().weight
}

/// The factor for this thread's loss.
pub(crate) fn scale_loss() -> f32 {
    let context = CURRENT.get();
    CURRENT.set(BatchContext { scaled: true, ..context });
    context.loss_scale
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_ends_with_its_scope() {
        assert_eq!(weight(), 1.0);
        let ((), scaled) = BatchContext::new(1, 4, 8.0).scope(|| {
            assert_eq!(weight(), 0.25);
            let ((), scaled) = BatchContext::new(0, 4, 1.0).scope(|| assert_eq!(weight(), 0.0));
            assert!(!scaled);
            assert_eq!((weight(), scale_loss()), (0.25, 8.0));
        });
        assert!(scaled);
        let failed = || BatchContext::new(1, 2, 1.0).scope(|| panic!("a step"));
        assert!(std::panic::catch_unwind(failed).is_err());
        assert_eq!((weight(), scale_loss()), (1.0, 1.0));
    }
}
