//! Convolution, optionally with ReLU and max-pooling.

mod operation;
#[cfg(test)]
mod tests;

use super::operation::ternary;
use super::pool::{relu_max_pool, side_by_side};
use crate::conv::{Geometry, Strided};
use crate::host_tensor::is_flex;
use burn::nn::{PaddingConfig2d, conv::Conv2d, pool::MaxPool2d};
use burn::tensor::{DType, FloatDType, Tensor, activation::relu};

/// Computes `layer.forward(x)`.
///
/// The kernel supports one group and equal padding on both sides, up to `dilation × (kernel − 1)`; any stride without
/// dilation, and any dilation with stride 1. 16-bit images are convolved in f32; the result has their type. Burn adds the
/// gradient of an f16 weight in f16.
///
/// A NaN or infinite input can make neighbouring outputs NaN as well: on the Winograd path those of the same 2 × 2 tile,
/// and with a stride those whose kernel would reach it if its sides were rounded up to multiples of the stride.
pub fn conv(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(shape) => run(layer, x, Settings { shape, epilogue: Epilogue::Nothing }),
        None => layer.forward(x),
    }
}

/// Computes `relu(layer.forward(x))`; see [`conv`].
pub fn conv_relu(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(shape) => run(layer, x, Settings { shape, epilogue: Epilogue::Relu }),
        None => relu(layer.forward(x)),
    }
}

/// Computes `pool.forward(relu(layer.forward(x)))`; see [`conv`].
///
/// It is one operation if the windows are 2 × 2 with stride 2.
pub fn conv_relu_max_pool(layer: &Conv2d, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    let both = (pool.kernel_size == [2, 2] && side_by_side(pool))
        .then(|| covered(layer, &x))
        .flatten()
        .filter(|shape| shape.geometry().pooled().iter().all(|&length| length > 0));
    match both {
        Some(shape) => run(layer, x, Settings { shape, epilogue: Epilogue::Pooled }),
        None => relu_max_pool(pool, conv(layer, x)),
    }
}

#[derive(Clone, Copy, Debug)]
struct Settings {
    shape: Shape,
    epilogue: Epilogue,
}

/// A convolution that the kernels support.
#[derive(Clone, Copy, Debug)]
enum Shape {
    /// With stride 1.
    Plain(Geometry),
    Strided(Strided),
}

impl Shape {
    /// The convolution of stride 1 that the kernels compute.
    fn geometry(&self) -> Geometry {
        match self {
            Shape::Plain(geometry) => *geometry,
            Shape::Strided(strided) => strided.geometry(),
        }
    }
}

/// Operations after the convolution.
#[derive(Clone, Copy, Debug)]
enum Epilogue {
    Nothing,
    Relu,
    /// ReLU and 2 × 2 max-pooling.
    Pooled,
}

fn run(layer: &Conv2d, x: Tensor<4>, settings: Settings) -> Tensor<4> {
    let (weight, dtype) = (layer.weight.val(), FloatDType::from(x.dtype()));
    let bias = match &layer.bias {
        Some(bias) => bias.val(),
        None => Tensor::zeros([settings.shape.geometry().weights()[0]], &weight.device()),
    };
    if dtype == FloatDType::F32 {
        return ternary(settings, x, weight, bias);
    }
    let f32 = FloatDType::F32;
    let output: Tensor<4> = ternary(settings, x.cast(f32), weight.cast(f32), bias.cast(f32));
    output.cast(dtype)
}

/// The shape, if the kernels support it.
fn covered(layer: &Conv2d, x: &Tensor<4>) -> Option<Shape> {
    let padding = match layer.padding {
        PaddingConfig2d::Valid => [0, 0],
        PaddingConfig2d::Explicit(top, left, bottom, right) if top == bottom && left == right => [top, left],
        PaddingConfig2d::Explicit(..) | PaddingConfig2d::Same => return None,
    };
    let on_host = [x, &*layer.weight].iter().all(|tensor| is_flex(&tensor.device()));
    if layer.groups != 1 || !on_host || !matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16) {
        return None;
    }
    let (images, weights) = (x.dims(), layer.weight.dims());
    match (layer.stride, layer.dilation) {
        ([1, 1], dilation) => Geometry::new(images, weights, padding, dilation).map(Shape::Plain),
        (stride, [1, 1]) => Strided::new(images, weights, padding, stride).map(Shape::Strided),
        _ => None,
    }
}
