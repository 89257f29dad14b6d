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
mod stage;
mod weights;
mod winograd;

pub use forward::Filters;
pub use geometry::Geometry;
pub use stage::Gradient;

/// Outputs `[batch, filters, height, width]` for `images`, `[batch, channels, height, width]`; of those
/// with an output, what its ReLU let through.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn forward(geometry: Geometry, images: Gradient, filters: Filters) -> Vec<f32> {
    let way = if winograd::pays(&geometry) { winograd::forward } else { forward::forward };
    way(geometry, images, filters)
}

/// The gradients of weights, `[filters, channels, height, width]`, and bias, `[filters]`, for `images`,
/// `[batch, channels, height, width]`, and the `gradient` of the output.
///
/// # Panics
/// If a slice is shorter than `geometry` says.
pub fn gradients(geometry: Geometry, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
    let way = if winograd::pays(&geometry) { winograd::gradients } else { weights::gradients };
    way(geometry, images, gradient)
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
    forward(geometry.transposed(), gradient, Filters { weight: &turned, bias: None, relu: false })
}
