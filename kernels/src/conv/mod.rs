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
mod geometry;
mod padded;
mod patches;
mod source;
mod weights;
mod winograd;

pub use bias::{add_bias, channel_sums};
pub use depthwise::Depthwise;
pub use source::{Gradient, Pooled, Whole};

use crate::pool::{self, Windows};
use forward::Filters;
use geometry::Geometry;

/// Filters in one vector, for which direct convolution leaves no part of a tile unused but Winograd's does.
const ONE_VECTOR: usize = 16;

/// A convolution of images `[batch, channels, height, width]`.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    geometry: Geometry,
    /// Whether the kernels for stride 1 and equal padding on both sides compute it.
    pub(crate) plain: bool,
    /// Whether the gradient of the weights reads phases of the image.
    divided: bool,
}

impl Shape {
    /// Validates shapes; weights are `[filters, channels, rows, columns]`, `padding` is the zeros before and after, by axis.
    ///
    /// `None` if a dimension is zero, the shapes do not match, the kernel exceeds the padded image, or a tensor would not
    /// fit in the address space.
    pub fn new(
        images: [usize; 4],
        weights: [usize; 4],
        padding: [[usize; 2]; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
    ) -> Option<Self> {
        let geometry = Geometry::new(images, weights, padding, stride, dilation)?;
        let direct = !patches::are_faster(&geometry);
        let plain = direct && geometry.is_plain(padding.map(|[_, after]| after));
        let divided = direct && geometry.is_divided();
        patches::fit(&geometry).then_some(Self { geometry, plain, divided })
    }

    /// Shape of the images, `[batch, channels, height, width]`.
    pub fn inputs(&self) -> [usize; 4] {
        self.geometry.inputs()
    }

    /// Shape of the weights, `[filters, channels, rows, columns]`.
    pub fn weights(&self) -> [usize; 4] {
        let Geometry { channels, filters, kernel: [rows, columns], .. } = self.geometry;
        [filters, channels, rows, columns]
    }

    /// Shape of the output, `[batch, filters, height, width]`.
    pub fn outputs(&self) -> [usize; 4] {
        self.geometry.outputs()
    }

    /// The output; `bias` is empty for none.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn forward(&self, images: &[f32], weights: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
        if !self.plain {
            return patches::forward(&self.geometry, images, weights, bias, relu);
        }
        outputs(self.geometry, images.into(), Filters { weights, rotated: false, bias, relu })
    }

    /// The output after a ReLU and 2 × 2 max-pooling.
    ///
    /// Returns the values, `[batch, filters, height / 2, width / 2]`, and the index of each within its window,
    /// row by row, or [`pool::NONE`] if no value is positive. The Winograd path does not store the unpooled output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape, or an output smaller than a window.
    pub fn forward_pooled(&self, images: &[f32], weights: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<u8>) {
        if self.plain && winograd::is_faster(&self.geometry) {
            let filters = Filters { weights, rotated: false, bias, relu: false };
            return winograd::forward_pooled(self.geometry, images.into(), filters);
        }
        pool::forward(&self.forward(images, weights, bias, false), &windows(self.outputs()))
    }

    /// Gradients of weights and bias, from that of the output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn gradients(&self, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
        let Self { geometry, plain, divided } = *self;
        if plain && winograd::is_faster(&geometry) && geometry.filters > ONE_VECTOR {
            return winograd::gradients(geometry, images, gradient);
        }
        unpooled(gradient, self.outputs(), |gradient| match plain || divided {
            true => weights::gradients(geometry, images, gradient),
            false => patches::gradients(&geometry, images, gradient),
        })
    }

    /// Gradient of the images, from that of the output.
    ///
    /// # Panics
    /// If a slice is shorter than its shape.
    pub fn input_gradient(&self, weights: &[f32], gradient: Gradient) -> Vec<f32> {
        let Self { geometry, plain, .. } = *self;
        if !plain {
            return unpooled(gradient, self.outputs(), |gradient| {
                patches::input_gradient(&geometry, weights, gradient)
            });
        }
        outputs(geometry.transposed(), gradient, Filters { weights, rotated: true, bias: &[], relu: false })
    }
}

fn outputs(geometry: Geometry, from: Gradient, filters: Filters) -> Vec<f32> {
    if winograd::is_faster(&geometry) {
        return winograd::forward(geometry, from, filters);
    }
    unpooled(from, geometry.inputs(), |images| forward::forward(geometry, images, filters))
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
