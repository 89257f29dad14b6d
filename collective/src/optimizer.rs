//! The optimizer step of a module: all parameters together, where the device and the optimizer support it.

/// Runs `act`, one step of a module's optimizer.
///
/// On a CUDA device, steps of [`Sgd`](kernels::layers::Sgd) and [`AdamW`](kernels::layers::AdamW) in f32 share a launch.
pub(crate) fn step<R>(act: impl FnOnce() -> R) -> R {
    #[cfg(feature = "cuda")]
    return kernels::layers::together(crate::cuda::CudaUpdates::default(), act);
    #[cfg(not(feature = "cuda"))]
    act()
}
