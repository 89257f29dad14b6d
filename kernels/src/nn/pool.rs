//! Pooling.

use super::drop_in::drop_in;
use crate::layers;
use burn::nn::PaddingConfig2d;
pub use burn::nn::pool::*;
use burn::tensor::Tensor;

drop_in! {
    /// Two-dimensional max-pooling.
    MaxPool2d: burn::nn::pool::MaxPool2d;
    MaxPool2dConfig: burn::nn::pool::MaxPool2dConfig,
    new(kernel_size: [usize; 2]),
    with(with_strides: [usize; 2], with_padding: PaddingConfig2d, with_dilation: [usize; 2], with_ceil_mode: bool),
    init()
}

impl MaxPool2d {
    /// Maps `[batch, channels, height, width]` to the largest value of each window; see [`layers::max_pool`].
    pub fn forward(&self, input: Tensor<4>) -> Tensor<4> {
        layers::max_pool(&self.0, input)
    }
}
