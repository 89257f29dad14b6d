//! Operations on f32 tensors in host memory, with their gradients.

use crate::autodiff::{self, Backward};
use crate::host_tensor::{Host, contiguous, tensor};
use burn::backend::{Dispatch, Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Tensor;

/// Computes an operation of tensors of any ranks: the output of `forward`, which also returns its backward pass. Both
/// receive row-major tensors.
///
/// Code in closures of a function that is generic over ranks is compiled in the caller's crate, which may be without
/// optimisation. Loops over values therefore belong in other functions.
///
/// # Panics
/// If a tensor is not in host memory.
pub fn run<F: Backward<Flex, N, R>, const D: usize, const N: usize, const R: usize>(
    inputs: [FloatTensor<Dispatch>; N],
    forward: impl FnOnce([Host; N]) -> (Host, F),
) -> Tensor<D> {
    let output = autodiff::run::<Flex, _, N, R, D>(inputs, |inputs| {
        let (output, backward) = forward(inputs.map(contiguous));
        let backward = move |read: [Host; R], gradient, wanted| {
            backward(read.map(contiguous), contiguous(gradient), wanted)
        };
        Some((output, backward))
    });
    output.expect("tensors in host memory")
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
