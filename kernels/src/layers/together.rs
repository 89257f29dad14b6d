//! Optimizer steps of several parameters together, such as in one launch on a GPU.

use crate::{adam_w, sgd};
use burn::backend::{Dispatch, tensor::FloatTensor};
use std::cell::RefCell;

/// A tensor of any rank.
pub type Values = FloatTensor<Dispatch>;

/// Steps of parameters that are computed when [`together`] ends.
///
/// The results must not be read before. All methods return `None` for tensors that the batch does not support.
pub trait UpdateBatch {
    /// Parameter and velocity after a step.
    fn sgd(
        &mut self,
        with: sgd::Sgd,
        parameter: Values,
        velocity: Values,
        gradient: Values,
    ) -> Option<[Values; 2]>;

    /// Parameter and both moments after a step.
    fn adam_w(
        &mut self,
        with: adam_w::AdamW,
        parameter: Values,
        moments: [Values; 2],
        gradient: Values,
    ) -> Option<[Values; 3]>;

    /// Computes all steps.
    fn finish(&mut self);
}

thread_local! {
    static BATCH: RefCell<Option<Box<dyn UpdateBatch>>> = const { RefCell::new(None) };
}

/// Runs `act`, in which [`Sgd`](super::Sgd) and [`AdamW`](super::AdamW) add their steps to `batch`.
///
/// `act` is one step of a module's optimizer. Without `together`, each parameter's step is computed separately, with
/// the same result up to rounding.
pub fn together<R>(batch: impl UpdateBatch + 'static, act: impl FnOnce() -> R) -> R {
    struct Finish(Option<Box<dyn UpdateBatch>>);
    impl Drop for Finish {
        fn drop(&mut self) {
            if let Some(mut batch) = BATCH.replace(self.0.take()) {
                batch.finish();
            }
        }
    }
    let _finish = Finish(BATCH.replace(Some(Box::new(batch))));
    act()
}

/// The result of `add` for the current batch, if there is one.
pub(super) fn batched<R>(add: impl FnOnce(&mut dyn UpdateBatch) -> Option<R>) -> Option<R> {
    BATCH.with_borrow_mut(|batch| add(batch.as_deref_mut()?))
}
