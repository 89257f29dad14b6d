//! Operations on f32 tensors in host memory, with their gradients.

use crate::autodiff::{self, Gradients, Saved, Upstream};
use crate::host_tensor::{Host, contiguous, tensor};
use burn::backend::{Dispatch, Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Tensor;
use std::fmt;

/// An operation of `N` tensors, of which backward reads the first `R`. All tensors are row-major and f32.
pub trait Operation<const N: usize, const R: usize>: Clone + Send + Sync + 'static {
    /// What backward needs besides the inputs.
    type Saved: Clone + Send + 'static;

    /// Computes the output.
    fn forward(&self, inputs: [Host; N]) -> (Host, Self::Saved);

    /// Computes the gradients of the inputs that `wanted` marks; others may be `None`.
    fn backward(
        &self,
        read: [Host; R],
        saved: Self::Saved,
        gradient: Host,
        wanted: [bool; N],
    ) -> [Option<Host>; N];
}

/// Gradients in the shapes of the inputs, where wanted.
pub fn shaped<const N: usize>(
    gradients: [Vec<f32>; N],
    inputs: &[Host; N],
    wanted: [bool; N],
) -> [Option<Host>; N] {
    let mut at = 0;
    gradients.map(|gradient| {
        at += 1;
        wanted[at - 1].then(|| tensor(gradient, inputs[at - 1].shape()))
    })
}

/// Computes an operation of tensors of any ranks.
///
/// # Panics
/// If a tensor is not in host memory.
pub fn run<const D: usize, const N: usize, const R: usize>(
    operation: impl Operation<N, R>,
    inputs: [FloatTensor<Dispatch>; N],
) -> Tensor<D> {
    let output = autodiff::run::<Flex, _, N, R, D>(inputs, |inputs| {
        let (output, saved) = operation.forward(inputs.map(contiguous));
        Some((output, State { operation, saved }))
    });
    output.expect("tensors in host memory")
}

#[derive(Clone)]
struct State<O, S> {
    operation: O,
    saved: S,
}

impl<O, S> fmt::Debug for State<O, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<O>())
    }
}

impl<const N: usize, const R: usize, O: Operation<N, R>> Saved<Flex, N, R> for State<O, O::Saved> {
    fn gradients(self, Upstream { gradient, wanted, read }: Upstream<Flex, N, R>) -> Gradients<Flex, N> {
        self.operation.backward(read.map(contiguous), self.saved, contiguous(gradient), wanted)
    }
}
