//! Two-dimensional convolution with stride 1; `patches` computes those with other strides.
//!
//! No patch matrix (im2col) is built. A tap of one channel reads 48 consecutive output positions as three
//! vectors, because the rows of an image follow each other in memory. Positions at which the kernel
//! exceeds the row are computed and discarded: 8 % of a 26 × 26 image.
//!
//! The gradient of the input is the same operation on the padded gradient with the kernel rotated by
//! 180°. The gradient of the weights runs over positions, with output channels in the vector lanes.
//! 3 × 3 kernels with many channels use the algorithm in `winograd`.

mod bias;
mod forward;
mod geometry;
mod padded;
mod patches;
mod source;
mod weights;
mod winograd;

pub use bias::{add_bias, channel_sums};
pub use forward::Filters;
pub use geometry::Geometry;
pub use patches::Patches;
pub use source::{Gradient, Pooled, Whole};

use crate::pool::{self, Windows};

/// Filters in one vector, for which direct convolution leaves no part of a tile unused but Winograd's does.
const ONE_VECTOR: usize = 16;

/// Outputs `[batch, filters, height, width]` for `images`, `[batch, channels, height, width]`.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn forward(geometry: Geometry, images: &[f32], filters: Filters) -> Vec<f32> {
    outputs(geometry, Gradient::images(images), filters)
}

/// Convolution, ReLU and 2 × 2 max-pooling in one operation.
///
/// Returns the values, `[batch, filters, height / 2, width / 2]`, and the index of each within its window,
/// row by row, or [`pool::NONE`] if no value is positive. The Winograd path does not store the unpooled output.
///
/// # Panics
/// If a slice is shorter than `geometry` says, or an output smaller than a window.
pub fn forward_pooled(geometry: Geometry, images: &[f32], filters: Filters) -> (Vec<f32>, Vec<u8>) {
    if winograd::is_faster(&geometry) {
        winograd::forward_pooled(geometry, Gradient::images(images), filters)
    } else {
        pool::forward(&forward(geometry, images, filters), &windows(geometry.outputs()))
    }
}

/// Gradients of weights, `[filters, channels, height, width]`, and bias, `[filters]`.
///
/// `images` is `[batch, channels, height, width]`, `gradient` that of the output.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn gradients(geometry: Geometry, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
    if winograd::is_faster(&geometry) && geometry.filters > ONE_VECTOR {
        return winograd::gradients(geometry, images, gradient);
    }
    match gradient {
        Gradient::Whole(gradient) => weights::gradients(geometry, images, gradient),
        Gradient::Pooled(pooled) => {
            let spread = spread(pooled, geometry.outputs());
            weights::gradients(geometry, images, Whole { values: &spread, output: None })
        }
    }
}

/// Gradient of the input, `[batch, channels, height, width]`.
///
/// `weights` is `[filters, channels, height, width]`.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn input_gradient(geometry: Geometry, weights: &[f32], gradient: Gradient) -> Vec<f32> {
    // Input channels and filters change places, and each kernel is rotated by 180°.
    let (area, channels) = (geometry.kernel[0] * geometry.kernel[1], geometry.channels);
    let rotated = |channel: usize, tap: usize| {
        let (filter, at) = (tap / area, area - 1 - tap % area);
        weights[(filter * channels + channel) * area + at]
    };
    outputs(geometry.transposed(), gradient, Filters { weight: &rotated, bias: None, relu: false })
}

fn outputs(geometry: Geometry, from: Gradient, filters: Filters) -> Vec<f32> {
    if winograd::is_faster(&geometry) {
        return winograd::forward(geometry, from, filters);
    }
    match from {
        Gradient::Whole(images) => forward::forward(geometry, images, filters),
        Gradient::Pooled(pooled) => {
            let spread = spread(pooled, geometry.inputs());
            forward::forward(geometry, Whole { values: &spread, output: None }, filters)
        }
    }
}

fn spread(Pooled { values, taken }: Pooled, images: [usize; 4]) -> Vec<f32> {
    pool::backward(values, taken, &windows(images))
}

/// # Panics
/// If an image is smaller than a window.
fn windows(images: [usize; 4]) -> Windows {
    Windows::new(images, [2, 2]).expect("an output of at least 2 × 2")
}
