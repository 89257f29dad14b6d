//! Pooling.

use super::drop_in::drop_in;
use crate::layers;
pub use burn::nn::pool::*;
use burn::nn::{PaddingConfig1d, PaddingConfig2d};
use burn::tensor::Tensor;

drop_in! {
    /// Two-dimensional max-pooling.
    MaxPool2d, MaxPool2dConfig of pool;
    new(kernel_size: [usize; 2]),
    with(with_strides: [usize; 2], with_padding: PaddingConfig2d, with_dilation: [usize; 2], with_ceil_mode: bool),
    init(),
    /// Maps `[batch, channels, height, width]` to the largest value of each window; see [`layers::max_pool`].
    forward(input: Tensor<4>) -> Tensor<4> = layers::max_pool
}

drop_in! {
    /// Two-dimensional average pooling.
    AvgPool2d, AvgPool2dConfig of pool;
    new(kernel_size: [usize; 2]),
    with(
        with_strides: [usize; 2],
        with_padding: PaddingConfig2d,
        with_count_include_pad: bool,
        with_ceil_mode: bool
    ),
    init(),
    /// Maps `[batch, channels, height, width]` to the mean of each window; see [`layers::avg_pool`].
    forward(input: Tensor<4>) -> Tensor<4> = layers::avg_pool
}

drop_in! {
    /// Two-dimensional average pooling to a given output size.
    AdaptiveAvgPool2d, AdaptiveAvgPool2dConfig of pool;
    new(output_size: [usize; 2]),
    with(),
    init(),
    /// Maps `[batch, channels, height, width]` to `output_size` means per channel; see [`layers::adaptive_avg_pool`].
    forward(input: Tensor<4>) -> Tensor<4> = layers::adaptive_avg_pool
}

drop_in! {
    /// One-dimensional max-pooling.
    MaxPool1d, MaxPool1dConfig of pool;
    new(kernel_size: usize),
    with(with_stride: usize, with_padding: PaddingConfig1d, with_dilation: usize, with_ceil_mode: bool),
    init(),
    /// Maps `[batch, channels, length]` to the largest value of each window; see [`layers::max_pool1d`].
    forward(input: Tensor<3>) -> Tensor<3> = layers::max_pool1d
}

drop_in! {
    /// One-dimensional average pooling.
    AvgPool1d, AvgPool1dConfig of pool;
    new(kernel_size: usize),
    with(with_stride: usize, with_padding: PaddingConfig1d, with_count_include_pad: bool, with_ceil_mode: bool),
    init(),
    /// Maps `[batch, channels, length]` to the mean of each window; see [`layers::avg_pool1d`].
    forward(input: Tensor<3>) -> Tensor<3> = layers::avg_pool1d
}

drop_in! {
    /// One-dimensional average pooling to a given output size.
    AdaptiveAvgPool1d, AdaptiveAvgPool1dConfig of pool;
    new(output_size: usize),
    with(),
    init(),
    /// Maps `[batch, channels, length]` to `output_size` means per channel; see [`layers::adaptive_avg_pool1d`].
    forward(input: Tensor<3>) -> Tensor<3> = layers::adaptive_avg_pool1d
}
