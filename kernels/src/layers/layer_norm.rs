//! Layer, RMS and group normalisation.

use super::linear::no_bias;
use super::operation::{self, shaped};
use crate::group_norm;
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::layer_norm::{LayerNorm, Statistics};
use burn::backend::{Dispatch, TensorMetadata, tensor::FloatTensor};
use burn::nn::{GroupNorm, InstanceNorm, RmsNorm};
use burn::tensor::{DType, Tensor, assert_shape};

/// Normalises `x` over its last dimension, as `burn::tensor::module::layer_norm`.
///
/// 16-bit tensors are normalised in f32; the result has the type of `x`.
///
/// # Panics
/// If `gamma` or `beta` is not as long as the last dimension of `x`.
pub fn layer_norm<const D: usize>(
    x: Tensor<D>,
    gamma: Tensor<1>,
    beta: Tensor<1>,
    epsilon: f64,
) -> Tensor<D> {
    let width = x.dims()[D - 1];
    assert_shape!(gamma, [width]);
    assert_shape!(beta, [width]);
    if let dtype @ (DType::F16 | DType::BF16) = x.dtype() {
        let (gamma, beta) = (gamma.cast(DType::F32), beta.cast(DType::F32));
        return layer_norm(x.cast(DType::F32), gamma, beta, epsilon).cast(dtype);
    }
    #[cfg(feature = "cuda")]
    if let Some(output) = crate::cuda::layer_norm(&x, &gamma, &beta, epsilon as f32) {
        return output;
    }
    if !is_host(&x) || !is_host(&gamma) || !is_host(&beta) {
        return burn::tensor::module::layer_norm(x, gamma, Some(beta), epsilon);
    }
    let kernel = LayerNorm { epsilon: epsilon as f32, centred: true };
    let inputs = [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()];
    normalise(kernel, inputs, LayerNorm::forward, LayerNorm::backward)
}

/// Computes `layer.forward(x)`. The kernel supports f32.
pub fn rms_norm<const D: usize>(layer: &RmsNorm, x: Tensor<D>) -> Tensor<D> {
    if !is_host(&x) || !is_host(&*layer.gamma) {
        return layer.forward(x);
    }
    let gamma = layer.gamma.val();
    let [width] = gamma.dims();
    assert_shape!(x, [.., width]);
    let kernel = LayerNorm { epsilon: layer.epsilon as f32, centred: false };
    let beta = no_bias(&x.device()).into_dispatch();
    let inputs = [x.into_dispatch(), gamma.into_dispatch(), beta];
    normalise(kernel, inputs, LayerNorm::forward, LayerNorm::backward)
}

/// Computes `layer.forward(x)` of `x`, `[batch, channels, …]`. The kernel supports f32.
pub fn group_norm<const D: usize>(layer: &GroupNorm, x: Tensor<D>) -> Tensor<D> {
    if !is_host(&x) || x.dims().contains(&0) || layer.gamma.as_ref().is_some_and(|gamma| !is_host(&**gamma)) {
        return layer.forward(x);
    }
    assert_shape!(x, [_, layer.num_channels, ..]);
    let [gamma, beta] = [&layer.gamma, &layer.beta].map(|parameter| match parameter {
        Some(parameter) => parameter.val(),
        None => no_bias(&x.device()),
    });
    let kernel = group_norm::GroupNorm {
        groups: layer.num_groups,
        channels: layer.num_channels,
        positions: x.dims()[2..].iter().product(),
        epsilon: layer.epsilon as f32,
    };
    let inputs = [x.into_dispatch(), gamma.into_dispatch(), beta.into_dispatch()];
    normalise(kernel, inputs, group_norm::GroupNorm::forward, group_norm::GroupNorm::backward)
}

/// Computes `layer.forward(x)`, as [`group_norm()`] with a group for each channel.
pub fn instance_norm<const D: usize>(layer: &InstanceNorm, x: Tensor<D>) -> Tensor<D> {
    let InstanceNorm { gamma, beta, num_channels, epsilon, affine } = layer.clone();
    group_norm(&GroupNorm { gamma, beta, num_groups: num_channels, num_channels, epsilon, affine }, x)
}

/// Values and statistics, from `x`, gamma and beta.
type Forward<K> = fn(&K, [&[f32]; 3]) -> (Vec<f32>, Vec<Statistics>);

/// Gradients of `x`, gamma and beta, from them, the statistics and the gradient of the values.
type Backward<K> = fn(&K, [&[f32]; 3], &[Statistics], &[f32]) -> [Vec<f32>; 3];

/// An operation of `x`, gamma and beta.
fn normalise<K: Copy + Send + 'static, const D: usize>(
    kernel: K,
    inputs: [FloatTensor<Dispatch>; 3],
    forward: Forward<K>,
    backward: Backward<K>,
) -> Tensor<D> {
    operation::run(inputs, |inputs: [Host; 3]| {
        let (output, statistics) = forward(&kernel, inputs.each_ref().map(values));
        (tensor(output, inputs[0].shape()), move |read: [Host; 3], grad: Host, wanted| {
            shaped(backward(&kernel, read.each_ref().map(values), &statistics, values(&grad)), &read, wanted)
        })
    })
}
