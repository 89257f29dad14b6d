//! Two-dimensional convolution with stride 1.
//!
//! No matrix of patches is built (im2col). In an image whose rows follow each other in memory, a
//! step of the kernel is a constant distance, so that one tap of one channel meets the next 48
//! output positions as three loads. Outputs at the end of a row, where the kernel hangs over, are
//! computed and thrown away: 8 % of a 26 × 26 image. The gradient of the input is the same operation
//! over the padded gradient with the kernel turned round; that of the weights runs over positions
//! with output channels in the lanes. Kernels of 3 × 3 between many channels go another way, in `winograd`.

mod forward;
mod geometry;
mod padded;
mod source;
mod weights;
mod winograd;

pub use forward::Filters;
pub use geometry::Geometry;
pub use source::{Gradient, Pooled, Whole};

use crate::pool::{self, Windows};

/// Outputs `[batch, filters, height, width]` for `images`, `[batch, channels, height, width]`.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn forward(geometry: Geometry, images: &[f32], filters: Filters) -> Vec<f32> {
    outputs(geometry, Gradient::images(images), filters)
}

/// ReLU and max-pooling by windows of 2 × 2 at the end: the largest of zero and each window's outputs,
/// `[batch, filters, height / 2, width / 2]`, and which of the four it is, row by row, or [`pool::NONE`] if
/// none is above zero. Where outputs come in tiles of that size, they are never in memory.
///
/// # Panics
/// If a slice is shorter than `geometry` says, or an output smaller than a window.
pub fn forward_pooled(geometry: Geometry, images: &[f32], filters: Filters) -> (Vec<f32>, Vec<u8>) {
    if winograd::pays(&geometry) {
        winograd::forward_pooled(geometry, Gradient::images(images), filters)
    } else {
        pool::forward(&forward(geometry, images, filters), &windows(geometry.outputs()))
    }
}

/// The gradients of weights, `[filters, channels, height, width]`, and bias, `[filters]`, for `images`,
/// `[batch, channels, height, width]`, and the `gradient` of the output.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn gradients(geometry: Geometry, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
    if winograd::pays(&geometry) {
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

/// The gradient of the input, `[batch, channels, height, width]`, with the weights
/// `[filters, channels, height, width]`.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn input_gradient(geometry: Geometry, weights: &[f32], gradient: Gradient) -> Vec<f32> {
    // Each input channel is a filter now, and each filter a channel, turned round.
    let (area, channels) = (geometry.kernel[0] * geometry.kernel[1], geometry.channels);
    let turned = |channel: usize, tap: usize| {
        let (filter, at) = (tap / area, area - 1 - tap % area);
        weights[(filter * channels + channel) * area + at]
    };
    outputs(geometry.transposed(), gradient, Filters { weight: &turned, bias: None, relu: false })
}

fn outputs(geometry: Geometry, from: Gradient, filters: Filters) -> Vec<f32> {
    if winograd::pays(&geometry) {
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
