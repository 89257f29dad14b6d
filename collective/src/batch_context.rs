//! Thread-local context of the batch that a model computes.
//!
//! SyncBatchNorm reads the batch's weight against the other ranks' batches, and
//! [`precision::backward`](crate::precision::backward) reads the loss scale. Both are called from a user's model,
//! through Burn signatures without a parameter for the context. Only this crate sets it, for the duration of one
//! forward and backward pass.

use std::cell::Cell;

/// The context of one batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchContext {
    weight: f64,
    pub loss_scale: f32,
    /// Whether a loss was scaled.
    pub scaled: bool,
}

thread_local! {
    static CURRENT: Cell<BatchContext> = const { Cell::new(BatchContext::ALONE) };
}

impl BatchContext {
    /// The context outside a scope: equal weight for the batches of all ranks, and no loss scaling.
    const ALONE: Self = BatchContext { weight: 1.0, loss_scale: 1.0, scaled: false };

    /// The context of a batch whose loss is the mean over `samples`.
    ///
    /// Its gradients are averaged over the `global_samples` of all ranks. A batch of 0 `samples` is padding.
    pub fn new(samples: usize, global_samples: usize, loss_scale: f32) -> Self {
        Self { weight: samples as f64 / global_samples.max(1) as f64, loss_scale, scaled: false }
    }

    /// Runs `act` in this context.
    pub fn scope<R>(&mut self, act: impl FnOnce() -> R) -> R {
        let _outer = Restore(CURRENT.replace(*self));
        let result = act();
        self.scaled = CURRENT.get().scaled;
        result
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
        let (mut outer, mut inner) = (BatchContext::new(1, 4, 8.0), BatchContext::new(0, 4, 1.0));
        outer.scope(|| {
            assert_eq!(weight(), 0.25);
            inner.scope(|| assert_eq!(weight(), 0.0));
            assert_eq!((weight(), scale_loss()), (0.25, 8.0));
        });
        assert!(outer.scaled && !inner.scaled);
        let failed = || BatchContext::new(1, 2, 1.0).scope(|| panic!("a step"));
        assert!(std::panic::catch_unwind(failed).is_err());
        assert_eq!((weight(), scale_loss()), (1.0, 1.0));
    }
}
