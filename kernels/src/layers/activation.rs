//! Activation functions.

use super::linear::linear;
use super::operation::{self, Operation, shaped};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::{activation as kernel, leaky_relu as leaky};
use burn::backend::TensorMetadata;
use burn::nn::{LeakyRelu, PRelu, SwiGlu};
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::relu(x)`.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    elementwise::<D, 0>(x, kernel::relu, kernel::relu_gradient, |x| {
        #[cfg(feature = "cuda")]
        if let Some(output) = crate::cuda::relu(&x) {
            return output;
        }
        activation::relu(x)
    })
}

/// Computes `burn::tensor::activation::gelu(x)`.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    elementwise::<D, 1>(x, kernel::gelu, kernel::gelu_gradient, activation::gelu)
}

/// Computes `burn::tensor::activation::gelu_approximate(x)`.
pub fn gelu_approximate<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let (forward, gradient) = (kernel::gelu_approximate, kernel::gelu_approximate_gradient);
    elementwise::<D, 1>(x, forward, gradient, activation::gelu_approximate)
}

/// Computes `burn::tensor::activation::silu(x)`.
pub fn silu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    elementwise::<D, 1>(x, kernel::silu, kernel::silu_gradient, activation::silu)
}

/// Computes `burn::tensor::activation::sigmoid(x)`.
pub fn sigmoid<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    elementwise::<D, 0>(x, kernel::sigmoid, kernel::sigmoid_gradient, activation::sigmoid)
}

/// Computes `burn::tensor::activation::tanh(x)`.
pub fn tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    elementwise::<D, 0>(x, kernel::tanh, kernel::tanh_gradient, activation::tanh)
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
    let gated = [linear(&layer.linear_inner, x.clone()), linear(&layer.linear_outer, x)];
    if !gated.iter().all(is_host) || gated[0].dims() != gated[1].dims() {
        let [x, factor] = gated;
        return silu(x) * factor;
    }
    operation::run(SiluProduct, gated.map(Tensor::into_dispatch))
}

/// `silu(x) × factor`.
#[derive(Clone, Debug)]
struct SiluProduct;

impl Operation<2, 2> for SiluProduct {
    type Saved = ();

    fn forward(&self, [x, factor]: [Host; 2]) -> (Host, ()) {
        (tensor(kernel::silu_product(values(&x), values(&factor)), x.shape()), ())
    }

    fn backward(&self, read: [Host; 2], (): (), grad: Host, wanted: [bool; 2]) -> [Option<Host>; 2] {
        let [x, factor] = read.each_ref().map(values);
        shaped(kernel::silu_product_gradients(x, factor, values(&grad)), &read, wanted)
    }
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

/// A function of every value, computed by a kernel on a CPU and otherwise by `elsewhere`.
///
/// Its gradient depends on the output, or, with `R` of 1, on `x`.
fn elementwise<const D: usize, const R: usize>(
    x: Tensor<D>,
    forward: fn(&[f32]) -> Vec<f32>,
    gradient: fn(&[f32], &[f32]) -> Vec<f32>,
    elsewhere: impl FnOnce(Tensor<D>) -> Tensor<D>,
) -> Tensor<D> {
    if !is_host(&x) {
        return elsewhere(x);
    }
    operation::run::<D, 1, R>(Elementwise { forward, gradient }, [x.into_dispatch()])
}

/// A function of every value.
#[derive(Clone, Debug)]
struct Elementwise {
    forward: fn(&[f32]) -> Vec<f32>,
    /// Gradient of the input, from the input or the output and the gradient of the output.
    gradient: fn(&[f32], &[f32]) -> Vec<f32>,
}

impl<const R: usize> Operation<1, R> for Elementwise {
    /// The output, unless backward reads the input.
    type Saved = Option<Host>;

    fn forward(&self, [x]: [Host; 1]) -> (Host, Self::Saved) {
        let output = tensor((self.forward)(values(&x)), x.shape());
        (output.clone(), (R == 0).then_some(output))
    }

    fn backward(&self, read: [Host; R], output: Self::Saved, grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        let known = read.into_iter().chain(output).next();
        [known.map(|known| tensor((self.gradient)(values(&known), values(&grad)), grad.shape()))]
    }
}
