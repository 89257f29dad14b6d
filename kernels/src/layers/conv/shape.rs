//! The convolutions that the kernels support.

use super::super::padding::padding;
use crate::conv::{self, Filters, Geometry, Gradient, Patches, Pooled, Whole};
use crate::pool::{self, Windows};
use burn::nn::PaddingConfig2d;

/// Settings of a convolution layer in two dimensions.
pub struct Setting<'a> {
    pub stride: [usize; 2],
    pub dilation: [usize; 2],
    pub groups: usize,
    pub padding: &'a PaddingConfig2d,
}

/// A convolution that the kernels support.
#[derive(Clone, Copy, Debug)]
pub enum Shape {
    /// With stride 1 and equal padding on both sides.
    Plain(Geometry),
    Patches(Patches),
}

impl Shape {
    /// The shape for images and weights, if the kernels support it.
    pub fn new(images: [usize; 4], weights: [usize; 4], setting: &Setting) -> Option<Self> {
        let ([_, _, size @ ..], [_, _, kernel @ ..]) = (images, weights);
        let padding = padding(setting.padding, size, kernel, setting.stride);
        if setting.groups != 1 {
            return None;
        }
        let [[top, bottom], [left, right]] = padding;
        let plain = setting.stride == [1, 1] && top == bottom && left == right;
        plain
            .then(|| Geometry::new(images, weights, [top, left], setting.dilation).map(Shape::Plain))
            .flatten()
            .or_else(|| {
                Patches::new(images, weights, padding, setting.stride, setting.dilation).map(Shape::Patches)
            })
    }

    pub fn inputs(&self) -> [usize; 4] {
        match self {
            Shape::Plain(geometry) => geometry.inputs(),
            Shape::Patches(patches) => patches.inputs(),
        }
    }

    pub fn weights(&self) -> [usize; 4] {
        match self {
            Shape::Plain(geometry) => geometry.weights(),
            Shape::Patches(patches) => patches.weights(),
        }
    }

    pub fn outputs(&self) -> [usize; 4] {
        match self {
            Shape::Plain(geometry) => geometry.outputs(),
            Shape::Patches(patches) => patches.outputs(),
        }
    }

    /// The output; `bias` is empty for none.
    pub fn forward(&self, images: &[f32], weights: &[f32], bias: &[f32], relu: bool) -> Vec<f32> {
        match self {
            Shape::Plain(geometry) => {
                filters(geometry, weights, bias, relu, |filters| conv::forward(*geometry, images, filters))
            }
            Shape::Patches(patches) => patches.forward(images, weights, bias, relu),
        }
    }

    /// The output after a ReLU and 2 × 2 max-pooling, and the index of each value within its window.
    pub fn forward_pooled(&self, images: &[f32], weights: &[f32], bias: &[f32]) -> (Vec<f32>, Vec<u8>) {
        match self {
            Shape::Plain(geometry) => filters(geometry, weights, bias, false, |filters| {
                conv::forward_pooled(*geometry, images, filters)
            }),
            Shape::Patches(patches) => {
                pool::forward(&patches.forward(images, weights, bias, false), &self.windows())
            }
        }
    }

    /// Gradients of weights and bias, from that of the output.
    pub fn gradients(&self, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
        match self {
            Shape::Plain(geometry) => conv::gradients(*geometry, images, gradient),
            Shape::Patches(patches) => {
                self.unpooled(gradient, |gradient| patches.gradients(images, gradient))
            }
        }
    }

    /// Gradient of the images, from that of the output.
    pub fn input_gradient(&self, weights: &[f32], gradient: Gradient) -> Vec<f32> {
        match self {
            Shape::Plain(geometry) => conv::input_gradient(*geometry, weights, gradient),
            Shape::Patches(patches) => {
                self.unpooled(gradient, |gradient| patches.input_gradient(weights, gradient))
            }
        }
    }

    /// `with` applied to the gradient of the output before pooling.
    fn unpooled<R>(&self, gradient: Gradient, with: impl FnOnce(Whole) -> R) -> R {
        match gradient {
            Gradient::Whole(whole) => with(whole),
            Gradient::Pooled(Pooled { values, taken }) => {
                let spread = pool::backward(values, taken, &self.windows());
                with(Whole { values: &spread, output: None })
            }
        }
    }

    /// Windows of 2 × 2 outputs.
    ///
    /// # Panics
    /// If the output is smaller.
    fn windows(&self) -> Windows {
        Windows::new(self.outputs(), [2, 2]).expect("an output of at least 2 × 2")
    }
}

/// `with` applied to the filters, whose bias may be empty.
fn filters<R>(
    geometry: &Geometry,
    weights: &[f32],
    bias: &[f32],
    relu: bool,
    with: impl FnOnce(Filters) -> R,
) -> R {
    let taps = geometry.taps();
    let weight = |filter, tap| weights[filter * taps + tap];
    with(Filters { weight: &weight, bias: (!bias.is_empty()).then_some(bias), relu })
}

/// Values of an output of which every value passes its gradient on.
pub fn whole(values: &[f32]) -> Gradient<'_> {
    Gradient::Whole(Whole { values, output: None })
}
