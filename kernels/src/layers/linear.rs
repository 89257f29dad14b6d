//! The linear layer.

use super::operation::{self, Operation};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::linear;
use burn::backend::TensorMetadata;
use burn::nn::Linear;
use burn::tensor::{Device, Tensor, assert_shape};

/// Computes `layer.forward(x)` of `x`, `[…, inputs]`.
pub fn linear<const D: usize>(layer: &Linear, x: Tensor<D>) -> Tensor<D> {
    if !is_host(&x) || !is_host(&*layer.weight) {
        return layer.forward(x);
    }
    let weight = layer.weight.val();
    let [inputs, _] = weight.dims();
    assert_shape!(x, [.., inputs]);
    let bias = layer.bias.as_ref().map_or_else(|| no_bias(&x.device()), |bias| bias.val());
    operation::run(Operator, [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()])
}

/// Without values, which the kernel takes for no bias.
pub(crate) fn no_bias(device: &Device) -> Tensor<1> {
    Tensor::empty([0], device)
}

#[derive(Clone, Debug)]
struct Operator;

impl Operation<3, 2> for Operator {
    type Saved = ();

    const READS: [usize; 2] = [0, 1];

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, ()) {
        let mut shape = x.shape();
        let last = shape.num_dims() - 1;
        shape[last] = weight.shape()[1];
        let output = linear::forward(values(&x), values(&weight), values(&bias), shape[last]);
        (tensor(output, shape), ())
    }

    fn backward(&self, [x, weight]: [Host; 2], (): (), grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
        let [inputs, outputs] = weight.shape().dims();
        let batch = grad.shape().num_elements() / outputs.max(1);
        let for_x = wanted[0]
            .then(|| tensor(linear::input_gradient(values(&weight), values(&grad), outputs), x.shape()));
        if !wanted[1] && !wanted[2] {
            return [for_x, None, None];
        }
        let (for_weight, for_bias) = linear::gradients(values(&x), values(&grad), [batch, inputs, outputs]);
        [for_x, Some(tensor(for_weight, weight.shape())), Some(tensor(for_bias, [outputs]))]
    }
}
