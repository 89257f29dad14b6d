//! The linear layer.

use super::drop_in::drop_in;
use crate::layers;
use burn::nn::{Initializer, LinearLayout};
use burn::tensor::{Device, Tensor};

drop_in! {
    /// Affine map of the last dimension: `x × weight + bias`.
    Linear, LinearConfig;
    new(d_input: usize, d_output: usize),
    with(with_bias: bool, with_initializer: Initializer, with_layout: LinearLayout),
    init(device: &Device),
    /// Maps `[…, d_input]` to `[…, d_output]`.
    forward<D>(input: Tensor<D>) -> Tensor<D> = layers::linear
}
