//! Activation functions.

use super::linear::linear;
use super::operation::{self, shaped};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::{activation as kernel, elementwise::map, leaky_relu as leaky};
use burn::backend::TensorMetadata;
use burn::nn::{Elu, HardSigmoid, LeakyRelu, PRelu, Softplus, SwiGlu};
use burn::tensor::{Tensor, activation};

/// The function `value(x, settings)` of every value. Its `gradient(read, gradient, settings)` reads `x`, the `input`, or
/// the `output`.
macro_rules! elementwise {
    ($x:ident, $read:ident, $value:expr, $gradient:expr, $elsewhere:expr) => {
        elementwise!($x, $read, $value, $gradient, $elsewhere, [0.0; 2])
    };
    ($x:ident, $read:ident, $value:expr, $gradient:expr, $elsewhere:expr, $settings:expr) => {{
        static LOOPS: Loops = Loops {
            values: |x, settings| map(x, x, move |x, _| ($value)(x, settings)),
            gradients: |read, gradient, settings| map(read, gradient, move |x, g| ($gradient)(x, g, settings)),
        };
        elementwise::<_, { elementwise!(@$read) }>($x, $elsewhere, &LOOPS, $settings)
    }};
    (@input) => { 1 };
    (@output) => { 0 };
}

/// Computes `burn::tensor::activation::relu(x)`.
pub fn relu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let elsewhere = |x: Tensor<D>| {
        #[cfg(feature = "cuda")]
        if let Some(output) = crate::cuda::relu(&x) {
            return output;
        }
        activation::relu(x)
    };
    elementwise!(x, output, |x, _| kernel::relu(x), |y, g, _| kernel::relu_gradient(y, g), elsewhere)
}

/// Functions of [`burn::tensor::activation`] without settings, whose gradients read the `input` or the `output`.
macro_rules! functions {
    ($($name:ident, $gradient:ident of the $read:ident;)*) => {
        $(
            #[doc = concat!("Computes `burn::tensor::activation::", stringify!($name), "(x)`.")]
            pub fn $name<const D: usize>(x: Tensor<D>) -> Tensor<D> {
                elementwise!(
                    x,
                    $read,
                    |x, _| kernel::$name(x),
                    |read, g, _| kernel::$gradient(read, g),
                    activation::$name
                )
            }
        )*
    };
}

functions! {
    relu6, relu6_gradient of the input;
    gelu, gelu_gradient of the input;
    gelu_approximate, gelu_approximate_gradient of the input;
    silu, silu_gradient of the input;
    mish, mish_gradient of the input;
    hard_swish, hard_swish_gradient of the input;
    sigmoid, sigmoid_gradient of the output;
    tanh, tanh_gradient of the output;
    selu, selu_gradient of the input;
}

/// Computes `layer.forward(x)`.
pub fn elu<const D: usize>(layer: &Elu, x: Tensor<D>) -> Tensor<D> {
    let settings = [layer.alpha as f32, 0.0];
    let elsewhere = |x| layer.forward(x);
    elementwise!(x, input, kernel::elu, kernel::elu_gradient, elsewhere, settings)
}

/// Computes `layer.forward(x)`.
pub fn softplus<const D: usize>(layer: &Softplus, x: Tensor<D>) -> Tensor<D> {
    let settings = [layer.beta as f32, layer.threshold as f32];
    let elsewhere = |x| layer.forward(x);
    elementwise!(x, input, kernel::softplus, kernel::softplus_gradient, elsewhere, settings)
}

/// Computes `layer.forward(x)`.
pub fn hard_sigmoid<const D: usize>(layer: &HardSigmoid, x: Tensor<D>) -> Tensor<D> {
    let settings = [layer.alpha as f32, layer.beta as f32];
    let elsewhere = |x| layer.forward(x);
    elementwise!(x, input, kernel::hard_sigmoid, kernel::hard_sigmoid_gradient, elsewhere, settings)
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
    // Planes of this many values have the slopes in turn.
    let plane = x.dims()[axes..].iter().product();
    operation::run([x.into_dispatch(), slopes.into_dispatch()], move |[x, slopes]| {
        let output = leaky::scale(values(&x), values(&x), values(&slopes), plane);
        let backward = move |read: [Host; 2], grad: Host, wanted: [bool; 2]| {
            let ([x, slopes], grad) = (read.each_ref().map(values), values(&grad));
            let for_slopes = wanted[1].then(|| leaky::slope_gradients(x, grad, slopes.len(), plane));
            shaped([leaky::scale(x, grad, slopes, plane), for_slopes.unwrap_or_default()], &read, wanted)
        };
        (tensor(output, x.shape()), backward)
    })
}

/// Computes `layer.forward(x)`.
pub fn swiglu<const D: usize>(layer: &SwiGlu, x: Tensor<D>) -> Tensor<D> {
    let gated = [linear(&layer.linear_inner, x.clone()), linear(&layer.linear_outer, x)];
    if !gated.iter().all(is_host) || gated[0].dims() != gated[1].dims() {
        let [x, factor] = gated;
        return silu(x) * factor;
    }
    operation::run(gated.map(Tensor::into_dispatch), |[x, factor]| {
        let output = tensor(kernel::silu_product(values(&x), values(&factor)), x.shape());
        (output, |read: [Host; 2], grad: Host, wanted| {
            let [x, factor] = read.each_ref().map(values);
            shaped(kernel::silu_product_gradients(x, factor, values(&grad)), &read, wanted)
        })
    })
}

/// A function of every value, computed on a CPU by its loops, and otherwise by `elsewhere`.
///
/// Backward reads the input if `R` is 1, and otherwise the output.
fn elementwise<const D: usize, const R: usize>(
    x: Tensor<D>,
    elsewhere: impl FnOnce(Tensor<D>) -> Tensor<D>,
    loops: &'static Loops,
    settings: [f32; 2],
) -> Tensor<D> {
    if !is_host(&x) {
        return elsewhere(x);
    }
    operation::run([x.into_dispatch()], move |[x]| {
        let output = tensor((loops.values)(values(&x), settings), x.shape());
        let saved = (R == 0).then(|| output.clone());
        let backward = move |read: [Host; R], grad: Host, _: [bool; 1]| {
            let known = read.into_iter().chain(saved).next();
            let gradient = |known: Host| (loops.gradients)(values(&known), values(&grad), settings);
            [known.map(|known| tensor(gradient(known), grad.shape()))]
        };
        (output, backward)
    })
}

/// Loops over values and over gradients of the input.
///
/// In a static variable, they are compiled in this crate, whose profile optimises them, and not in a model's crate.
struct Loops {
    values: fn(&[f32], [f32; 2]) -> Vec<f32>,
    gradients: Gradients,
}

/// From what backward reads, the gradient of the output, and settings.
type Gradients = fn(&[f32], &[f32], [f32; 2]) -> Vec<f32>;
