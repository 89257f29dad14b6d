//! Convolutions.

use super::drop_in::drop_in;
use crate::layers;
pub use burn::nn::conv::*;
use burn::nn::{Initializer, PaddingConfig1d, PaddingConfig2d};
use burn::tensor::{Device, Tensor};

drop_in! {
    /// Two-dimensional convolution.
    Conv2d, Conv2dConfig of conv;
    new(channels: [usize; 2], kernel_size: [usize; 2]),
    with(
        with_stride: [usize; 2],
        with_dilation: [usize; 2],
        with_groups: usize,
        with_padding: PaddingConfig2d,
        with_bias: bool,
        with_initializer: Initializer
    ),
    init(device: &Device),
    /// Maps `[batch, channels, height, width]` to `[batch, filters, rows, columns]`; see [`layers::conv`].
    forward(input: Tensor<4>) -> Tensor<4> = layers::conv
}

drop_in! {
    /// One-dimensional convolution.
    Conv1d, Conv1dConfig of conv;
    new(channels_in: usize, channels_out: usize, kernel_size: usize),
    with(
        with_stride: usize,
        with_dilation: usize,
        with_groups: usize,
        with_padding: PaddingConfig1d,
        with_bias: bool,
        with_initializer: Initializer
    ),
    init(device: &Device),
    /// Maps `[batch, channels, length]` to `[batch, filters, positions]`; see [`layers::conv1d`].
    forward(input: Tensor<3>) -> Tensor<3> = layers::conv1d
}

drop_in! {
    /// Transposed two-dimensional convolution: the gradient of a convolution with respect to its input.
    ConvTranspose2d, ConvTranspose2dConfig of conv;
    new(channels: [usize; 2], kernel_size: [usize; 2]),
    with(
        with_stride: [usize; 2],
        with_dilation: [usize; 2],
        with_groups: usize,
        with_padding: [usize; 2],
        with_padding_out: [usize; 2],
        with_bias: bool,
        with_initializer: Initializer
    ),
    init(device: &Device),
    /// Maps `[batch, channels, height, width]` to `[batch, filters, rows, columns]`; see [`layers::conv_transpose`].
    forward(input: Tensor<4>) -> Tensor<4> = layers::conv_transpose
}

drop_in! {
    /// Transposed one-dimensional convolution: the gradient of a convolution with respect to its input.
    ConvTranspose1d, ConvTranspose1dConfig of conv;
    new(channels: [usize; 2], kernel_size: usize),
    with(
        with_stride: usize,
        with_dilation: usize,
        with_groups: usize,
        with_padding: usize,
        with_padding_out: usize,
        with_bias: bool,
        with_initializer: Initializer
    ),
    init(device: &Device),
    /// Maps `[batch, channels, length]` to `[batch, filters, positions]`; see [`layers::conv_transpose1d`].
    forward(input: Tensor<3>) -> Tensor<3> = layers::conv_transpose1d
}
