//! The linear layer.

use super::operation::{self, Operation};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::linear;
use burn::backend::TensorMetadata;
use burn::nn::Linear;
use burn::tensor::Tensor;

/// Computes `layer.forward(x)`. The kernel supports layers with a bias.
pub fn linear(layer: &Linear, x: Tensor<2>) -> Tensor<2> {
    let Some(bias) = layer.bias.as_ref().filter(|_| is_host(&x) && is_host(&*layer.weight)) else {
        return layer.forward(x);
    };
    operation::ternary(Operator, x, layer.weight.val(), bias.val())
}

#[derive(Clone, Debug)]
struct Operator;

impl Operation<3, 2> for Operator {
    type Saved = ();

    const READS: [usize; 2] = [0, 1];

    fn forward(&self, [x, weight, bias]: [Host; 3]) -> (Host, ()) {
        let shape = [x.shape()[0], bias.shape()[0]];
        (tensor(linear::forward(values(&x), values(&weight), values(&bias)), shape), ())
    }

    fn backward(&self, [x, weight]: [Host; 2], (): (), grad: Host, wanted: [bool; 3]) -> [Option<Host>; 3] {
        let [batch, inputs, outputs] = [x.shape()[0], x.shape()[1], grad.shape()[1]];
        let for_x = wanted[0]
            .then(|| tensor(linear::input_gradient(values(&weight), values(&grad), outputs), x.shape()));
        if !wanted[1] && !wanted[2] {
            return [for_x, None, None];
        }
        let (for_weight, for_bias) = linear::gradients(values(&x), values(&grad), [batch, inputs, outputs]);
        [for_x, Some(tensor(for_weight, weight.shape())), Some(tensor(for_bias, [outputs]))]
    }
}
