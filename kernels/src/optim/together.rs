//! Optimizer steps of several parameters in one launch on a GPU.

/// Runs `act`, one step of a module's optimizer.
///
/// On a CUDA device, the steps of [`Sgd`](super::Sgd), [`Adam`](super::Adam) and [`AdamW`](super::AdamW) in f32 share launches and are computed
/// when `act` has ended. Without `together`, each parameter's step is computed separately, with the same result up to
/// rounding.
pub fn together<R>(act: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    return batch::run(act);
    #[cfg(not(feature = "cuda"))]
    act()
}

#[cfg(feature = "cuda")]
mod batch {
    pub(crate) use crate::cuda::Settings;
    use crate::cuda::Updates;
    use burn::tensor::Tensor;
    use std::{cell::RefCell, thread};

    thread_local! {
        static UPDATES: RefCell<Option<Updates>> = const { RefCell::new(None) };
    }

    pub fn run<R>(act: impl FnOnce() -> R) -> R {
        struct Finish(Option<Updates>);
        impl Drop for Finish {
            fn drop(&mut self) {
                let updates = UPDATES.replace(self.0.take());
                // After a panic nothing reads the results.
                if let Some(updates) = updates.filter(|_| !thread::panicking()) {
                    updates.finish();
                }
            }
        }
        let _finish = Finish(UPDATES.replace(Some(Updates::default())));
        act()
    }

    /// Whether the step of a parameter from these tensors is added to the current updates.
    pub fn takes<const D: usize, const N: usize>(tensors: [&Tensor<D>; N]) -> bool {
        UPDATES.with_borrow(Option::is_some) && Updates::takes(tensors)
    }

    /// Adds a step to the current updates; see [`Updates::add`].
    ///
    /// # Panics
    /// If there are none.
    pub fn add<const D: usize, const I: usize, const O: usize>(
        with: Settings,
        tensors: [Tensor<D>; I],
    ) -> [Tensor<D>; O] {
        let add = |updates: &mut Option<Updates>| {
            updates.as_mut().expect("updates that take steps").add(with, tensors)
        };
        UPDATES.with_borrow_mut(add)
    }
}

#[cfg(feature = "cuda")]
pub(super) use batch::{Settings, add, takes};
