//! Activation functions.

use super::operation::{self, Operation};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::{gelu, relu, silu};
use burn::backend::TensorMetadata;
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::relu(x)`.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_host(&x) {
        return operation::run(Relu, [x.into_dispatch()]);
    }
    #[cfg(feature = "cuda")]
    if let Some(output) = crate::cuda::relu(&x) {
        return output;
    }
    activation::relu(x)
}

/// Computes `burn::tensor::activation::gelu(x)`.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let smooth = Smooth { forward: gelu::forward, backward: gelu::backward };
    if is_host(&x) { operation::run(smooth, [x.into_dispatch()]) } else { activation::gelu(x) }
}

/// Computes `burn::tensor::activation::silu(x)`.
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let smooth = Smooth { forward: silu::forward, backward: silu::backward };
    if is_host(&x) { operation::run(smooth, [x.into_dispatch()]) } else { activation::silu(x) }
}

#[derive(Clone, Debug)]
struct Relu;

impl Operation<1, 0> for Relu {
    /// The output.
    type Saved = Host;

    fn forward(&self, [x]: [Host; 1]) -> (Host, Host) {
        let output = tensor(relu::forward(values(&x)), x.shape());
        (output.clone(), output)
    }

    fn backward(&self, []: [Host; 0], output: Host, grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        [Some(tensor(relu::backward(values(&output), values(&grad)), grad.shape()))]
    }
}

/// A function whose gradient depends on its input.
#[derive(Clone, Debug)]
struct Smooth {
    forward: fn(&[f32]) -> Vec<f32>,
    /// Gradient of the input from the input and the gradient of the output.
    backward: fn(&[f32], &[f32]) -> Vec<f32>,
}

impl Operation<1, 1> for Smooth {
    type Saved = ();

    fn forward(&self, [x]: [Host; 1]) -> (Host, ()) {
        (tensor((self.forward)(values(&x)), x.shape()), ())
    }

    fn backward(&self, [x]: [Host; 1], (): (), grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        [Some(tensor((self.backward)(values(&x), values(&grad)), x.shape()))]
    }
}
