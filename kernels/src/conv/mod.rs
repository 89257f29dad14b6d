//! Two-dimensional convolution.
//!
//! With stride 1 and equal padding on both sides, no patch matrix (im2col) is built. A tap of one channel reads 48
//! consecutive output positions as three vectors, because the rows of an image follow each other in memory. Positions at
//! which the kernel exceeds the row are computed and discarded: 8 % of a 26 × 26 image. 3 × 3 kernels with many channels use
//! the algorithm in `winograd`. Other convolutions, and small images with many channels, use `patches`.
//!
//! The gradient of the input is the same operation on the padded gradient with the kernel rotated by
//! 180°. The gradient of the weights runs over positions, with output channels in the vector lanes; with a stride, over those
//! of a phase of the image.

mod bias;
mod depthwise;
mod forward;
mod padded;
mod patches;
mod shape;
mod source;
mod weights;
mod winograd;

pub use bias::{add_bias, channel_sums};
pub use depthwise::Depthwise;
pub use shape::Shape;
pub use source::{Gradient, Pooled, Whole};

use crate::pool::{self, Windows};
use forward::Filters;

/// Filters in one vector, for which direct convolution leaves no part of a tile unused but Winograd's does.
const ONE_VECTOR: usize = 16;

impl Shape {
    /// The output; `bias` is empty for none.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn forward(&self, images: &[f32], weights: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
        if !self.is_plain() {
            return patches::forward(self, images, weights, bias, relu);
        }
        outputs(*self, images.into(), Filters { weights, rotated: false, bias, relu })
    }

    /// The output after a ReLU and 2 × 2 max-pooling.
    ///
    /// Returns the values, `[batch, filters, height / 2, width / 2]`, and the index of each within its window,
    /// row by row, or [`pool::NONE`] if no value is positive. The Winograd path does not store the unpooled output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape, or an output smaller than a window.
    pub fn forward_pooled(&self, images: &[f32], weights: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<u8>) {
        if self.is_plain() && winograd::is_faster(self) {
            let filters = Filters { weights, rotated: false, bias, relu: false };
            return winograd::forward_pooled(*self, images.into(), filters);
        }
        pool::forward(&self.forward(images, weights, bias, false), &windows(self.outputs()))
    }

    /// Gradients of weights and bias, from that of the output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn gradients(&self, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
        if self.is_plain() && winograd::is_faster(self) && self.filters > ONE_VECTOR {
            return winograd::gradients(*self, images, gradient);
        }
        unpooled(gradient, self.outputs(), |gradient| match self.is_plain() || self.is_divided() {
            true => weights::gradients(*self, images, gradient),
            false => patches::gradients(self, images, gradient),
        })
    }

    /// Gradient of the images, from that of the output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn input_gradient(&self, weights: &[f32], gradient: Gradient) -> Vec<f32> {
        if !self.is_plain() {
            return unpooled(gradient, self.outputs(), |gradient| {
                patches::input_gradient(self, weights, gradient)
            });
        }
        outputs(self.transposed(), gradient, Filters { weights, rotated: true, bias: &[], relu: false })
    }
}

fn outputs(shape: Shape, from: Gradient, filters: Filters) -> Vec<f32> {
    if winograd::is_faster(&shape) {
        return winograd::forward(shape, from, filters);
    }
    unpooled(from, shape.inputs(), |images| forward::forward(shape, images, filters))
}

/// `with` applied to a gradient before pooling, which has this shape.
fn unpooled<R>(gradient: Gradient, shape: [usize; 4], with: impl FnOnce(Whole) -> R) -> R {
    match gradient {
        Gradient::Whole(whole) => with(whole),
        Gradient::Pooled(Pooled { values, taken }) => {
            with(Whole::from(&pool::backward(values, taken, &windows(shape))[..]))
        }
    }
}

/// # Panics
/// If an image is smaller than a window.
fn windows(images: [usize; 4]) -> Windows {
    Windows::new(images, [2, 2]).expect("an output of at least 2 × 2")
}
