//! Activation functions.

use super::linear::linear;
use super::operation::{self, Operation, shaped};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::{gelu, leaky_relu as leaky, relu, saturating, silu};
use burn::backend::TensorMetadata;
use burn::nn::{LeakyRelu, PRelu, SwiGlu};
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::relu(x)`.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_host(&x) {
        let relu = OfOutput { forward: relu::forward, backward: relu::backward };
        return operation::run(relu, [x.into_dispatch()]);
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

/// Computes `burn::tensor::activation::sigmoid(x)`.
pub fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let sigmoid = OfOutput { forward: saturating::sigmoid, backward: saturating::sigmoid_backward };
    if is_host(&x) { operation::run(sigmoid, [x.into_dispatch()]) } else { activation::sigmoid(x) }
}

/// Computes `burn::tensor::activation::tanh(x)`.
pub fn tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let tanh = OfOutput { forward: saturating::tanh, backward: saturating::tanh_backward };
    if is_host(&x) { operation::run(tanh, [x.into_dispatch()]) } else { activation::tanh(x) }
}

/// Computes `layer.forward(x)`.
pub fn leaky_relu<const D: usize>(layer: &LeakyRelu, x: Tensor<D>) -> Tensor<D> {
    if !is_host(&x) {
        return layer.forward(x);
    }
    let slope = Tensor::from_floats([layer.negative_slope as f32], &x.device());
    with_slopes(x, slope)
}

/// Computes `layer.forward(x)`. The kernel supports f32.
pub fn prelu<const D: usize>(layer: &PRelu, x: Tensor<D>) -> Tensor<D> {
    let [slopes] = layer.alpha.dims();
    let covered = slopes == 1 || x.dims().get(1) == Some(&slopes);
    if covered && is_host(&x) && is_host(&*layer.alpha) {
        with_slopes(x, layer.alpha.val())
    } else {
        layer.forward(x)
    }
}

/// Multiplies negative values by one slope, or by that of their channel.
fn with_slopes<const D: usize>(x: Tensor<D>, slopes: Tensor<1>) -> Tensor<D> {
    let axes = if slopes.dims() == [1] { 1 } else { 2 };
    let plane = x.dims()[axes..].iter().product();
    operation::run(Leaky { plane }, [x.into_dispatch(), slopes.into_dispatch()])
}

/// Computes `layer.forward(x)`.
pub fn swiglu<const D: usize>(layer: &SwiGlu, x: Tensor<D>) -> Tensor<D> {
    silu(linear(&layer.linear_inner, x.clone())) * linear(&layer.linear_outer, x)
}

/// Leaky ReLU of planes of `plane` values, which have the slopes in turn.
#[derive(Clone, Debug)]
struct Leaky {
    plane: usize,
}

impl Operation<2, 2> for Leaky {
    type Saved = ();

    fn forward(&self, [x, slopes]: [Host; 2]) -> (Host, ()) {
        let [values, slopes] = [&x, &slopes].map(values);
        (tensor(leaky::scale(values, values, slopes, self.plane), x.shape()), ())
    }

    fn backward(&self, read: [Host; 2], (): (), grad: Host, wanted: [bool; 2]) -> [Option<Host>; 2] {
        let ([x, slopes], grad) = (read.each_ref().map(values), values(&grad));
        let for_slopes = wanted[1].then(|| leaky::slope_gradients(x, grad, slopes.len(), self.plane));
        shaped([leaky::scale(x, grad, slopes, self.plane), for_slopes.unwrap_or_default()], &read, wanted)
    }
}

/// A function whose gradient depends on its output.
#[derive(Clone, Debug)]
struct OfOutput {
    forward: fn(&[f32]) -> Vec<f32>,
    /// Gradient of the input from the output and its gradient.
    backward: fn(&[f32], &[f32]) -> Vec<f32>,
}

impl Operation<1, 0> for OfOutput {
    /// The output.
    type Saved = Host;

    fn forward(&self, [x]: [Host; 1]) -> (Host, Host) {
        let output = tensor((self.forward)(values(&x)), x.shape());
        (output.clone(), output)
    }

    fn backward(&self, []: [Host; 0], output: Host, grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        [Some(tensor((self.backward)(values(&output), values(&grad)), grad.shape()))]
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
