//! The convolutions that the kernels support.

use crate::conv::{self, Filters, Geometry, Gradient, Strided, Whole};
use burn::nn::PaddingConfig2d;
use std::borrow::Cow;

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
    /// With stride 1.
    Plain(Geometry),
    Strided(Strided),
}

impl Shape {
    /// The shape for images and weights, if the kernels support it.
    pub fn new(images: [usize; 4], weights: [usize; 4], setting: &Setting) -> Option<Self> {
        let [_, _, rows, columns] = weights;
        let padding = match *setting.padding {
            PaddingConfig2d::Valid => [0, 0],
            PaddingConfig2d::Explicit(top, left, bottom, right) if top == bottom && left == right => {
                [top, left]
            }
            // Burn's padding is then (kernel − 1) / 2, whatever the dilation.
            PaddingConfig2d::Same if setting.stride == [1, 1] && rows % 2 == 1 && columns % 2 == 1 => {
                [rows / 2, columns / 2]
            }
            PaddingConfig2d::Explicit(..) | PaddingConfig2d::Same => return None,
        };
        match (setting.groups, setting.stride, setting.dilation) {
            (1, [1, 1], dilation) => Geometry::new(images, weights, padding, dilation).map(Shape::Plain),
            (1, stride, [1, 1]) => Strided::new(images, weights, padding, stride).map(Shape::Strided),
            _ => None,
        }
    }

    /// The convolution of stride 1 that the kernels compute.
    pub fn geometry(&self) -> Geometry {
        match self {
            Shape::Plain(geometry) => *geometry,
            Shape::Strided(strided) => strided.geometry(),
        }
    }

    pub fn inputs(&self) -> [usize; 4] {
        match self {
            Shape::Plain(geometry) => geometry.inputs(),
            Shape::Strided(strided) => strided.inputs(),
        }
    }

    pub fn weights(&self) -> [usize; 4] {
        match self {
            Shape::Plain(geometry) => geometry.weights(),
            Shape::Strided(strided) => strided.weights(),
        }
    }

    /// Images of the convolution with stride 1.
    pub fn images<'a>(&self, images: &'a [f32]) -> Cow<'a, [f32]> {
        match self {
            Shape::Plain(_) => Cow::Borrowed(images),
            Shape::Strided(strided) => Cow::Owned(strided.fold(images)),
        }
    }

    /// Weights of the convolution with stride 1.
    fn filters<'a>(&self, weights: &'a [f32]) -> Cow<'a, [f32]> {
        match self {
            Shape::Plain(_) => Cow::Borrowed(weights),
            Shape::Strided(strided) => Cow::Owned(strided.fold_weights(weights)),
        }
    }

    /// `with` applied to the filters, whose bias may be empty.
    pub fn with_filters<R>(
        &self,
        weights: &[f32],
        bias: &[f32],
        relu: bool,
        with: impl FnOnce(Filters) -> R,
    ) -> R {
        let (weights, taps) = (self.filters(weights), self.geometry().taps());
        let weight = |filter, tap| weights[filter * taps + tap];
        with(Filters { weight: &weight, bias: (!bias.is_empty()).then_some(bias), relu })
    }

    /// Gradients of weights and bias, from [`Shape::images`] and the gradient of the output.
    pub fn gradients(&self, images: &[f32], gradient: Gradient) -> (Vec<f32>, Vec<f32>) {
        let (weights, bias) = conv::gradients(self.geometry(), images, gradient);
        match self {
            Shape::Plain(_) => (weights, bias),
            Shape::Strided(strided) => (strided.unfold_weights(&weights), bias),
        }
    }

    /// Gradient of the images, from that of the output.
    pub fn input_gradient(&self, weights: &[f32], gradient: Gradient) -> Vec<f32> {
        let images = conv::input_gradient(self.geometry(), &self.filters(weights), gradient);
        match self {
            Shape::Plain(_) => images,
            Shape::Strided(strided) => strided.unfold(&images),
        }
    }
}

/// Values of an output of which every value passes its gradient on.
pub fn whole(values: &[f32]) -> Gradient<'_> {
    Gradient::Whole(Whole { values, output: None })
}
