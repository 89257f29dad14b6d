//! The activation function GELU.

use super::operation::{self, Operation};
use crate::gelu;
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::backend::TensorMetadata;
use burn::tensor::{Tensor, activation};

/// Computes `burn::tensor::activation::gelu(x)`.
pub fn gelu<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    if is_host(&x) { operation::unary(Operator, x) } else { activation::gelu(x) }
}

#[derive(Clone, Debug)]
struct Operator;

impl Operation<1, 1> for Operator {
    type Saved = ();

    const READS: [usize; 1] = [0];

    fn forward(&self, [x]: [Host; 1]) -> (Host, ()) {
        (tensor(gelu::forward(values(&x)), x.shape()), ())
    }

    fn backward(&self, [x]: [Host; 1], (): (), grad: Host, _: [bool; 1]) -> [Option<Host>; 1] {
        [Some(tensor(gelu::backward(values(&x), values(&grad)), x.shape()))]
    }
}
