//! The linear layer.

use super::operation;
use crate::host_tensor::{Host, is_flex, tensor, typed_values as values};
use crate::linear::{self, Value};
use burn::backend::TensorMetadata;
use burn::nn::Linear;
use burn::tensor::{DType, Device, Element, Tensor, assert_shape, bf16, f16};
use bytemuck::Pod;

/// Computes `layer.forward(x)` of `x`, `[…, inputs]`.
///
/// On a CPU, sums of 16-bit tensors are f32, and the results are rounded once; see [`linear`](crate::linear).
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    let covered = matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) && is_flex(&x.device());
    if !covered || layer.weight.dtype() != x.dtype() || !is_flex(&layer.weight.device()) {
        return layer.forward(x);
    }
    let weight = layer.weight.val();
    let [inputs, _] = weight.dims();
    assert_shape!(x, [.., inputs]);
    let bias = layer.bias.as_ref().map_or_else(|| no_bias(&x.device()).cast(x.dtype()), |bias| bias.val());
    let inputs = [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()];
    operation::run(inputs, |inputs| (forward(inputs), backward))
}

/// Without values, which the kernel takes for no bias.
pub(crate) fn no_bias(device: &Device) -> Tensor<1> {
    Tensor::empty([0], device)
}

fn forward(inputs: [Host; 3]) -> Host {
    match inputs[0].dtype() {
        DType::F16 => forward_of::<f16>(inputs),
        DType::BF16 => forward_of::<bf16>(inputs),
        _ => forward_of::<f32>(inputs),
    }
}

fn backward(read: [Host; 2], grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
    match grad.dtype() {
        DType::F16 => backward_of::<f16>(read, grad, wanted),
        DType::BF16 => backward_of::<bf16>(read, grad, wanted),
        _ => backward_of::<f32>(read, grad, wanted),
    }
}

fn forward_of<T: Value + Element + Pod>([x, weight, bias]: [Host; 3]) -> Host {
    let mut shape = x.shape();
    let last = shape.num_dims() - 1;
    shape[last] = weight.shape()[1];
    tensor(linear::forward::<T>(values(&x), values(&weight), values(&bias), shape[last]), shape)
}

fn backward_of<T: Value + Element + Pod>(
    [x, weight]: [Host; 2],
    grad: Host,
    wanted: [bool; 3],
) -> [Option<Host>; 3] {
    let [inputs, outputs] = weight.shape().dims();
    let grad = values::<T>(&grad);
    let batch = grad.len() / outputs.max(1);
    let for_x = wanted[0].then(|| tensor(linear::input_gradient(values(&weight), grad, outputs), x.shape()));
    if !wanted[1] && !wanted[2] {
        return [for_x, None, None];
    }
    let (for_weight, for_bias) = linear::gradients(values(&x), grad, [batch, inputs, outputs]);
    [for_x, Some(tensor(for_weight, weight.shape())), Some(tensor(for_bias, [outputs]))]
}
