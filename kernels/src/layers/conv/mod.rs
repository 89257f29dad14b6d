//! Convolution as a Burn operation, optionally with ReLU and max-pooling.

mod backend;
#[cfg(test)]
mod tests;

use super::pool::{relu_max_pool, side_by_side};
use crate::conv::{Geometry, Strided};
use crate::host_tensor::is_host;
use backend::ConvBackend;
use burn::backend::Dispatch;
use burn::nn::{PaddingConfig2d, conv::Conv2d, pool::MaxPool2d};
use burn::tensor::{Tensor, activation::relu};

/// Computes `layer.forward(x)`.
///
/// The kernel supports one group and equal padding on both sides, up to `dilation × (kernel − 1)`; any stride without
/// dilation, and any dilation with stride 1.
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
    let bias = match &layer.bias {
        Some(bias) => bias.val(),
        None => Tensor::zeros([settings.shape.geometry().weights()[0]], &layer.weight.device()),
    };
    Tensor::from_dispatch(<Dispatch as ConvBackend>::kernel_conv2d(
        x.into_dispatch(),
        layer.weight.val().into_dispatch(),
        bias.into_dispatch(),
        settings,
    ))
}

/// The shape, if the kernels support it.
fn covered(layer: &Conv2d, x: &Tensor<4>) -> Option<Shape> {
    let padding = match layer.padding {
        PaddingConfig2d::Valid => [0, 0],
        PaddingConfig2d::Explicit(top, left, bottom, right) if top == bottom && left == right => [top, left],
        PaddingConfig2d::Explicit(..) | PaddingConfig2d::Same => return None,
    };
    if layer.groups != 1 || !is_host(x) || !is_host(&layer.weight.val()) {
        return None;
    }
    let (images, weights) = (x.dims(), layer.weight.dims());
    match (layer.stride, layer.dilation) {
        ([1, 1], dilation) => Geometry::new(images, weights, padding, dilation).map(Shape::Plain),
        (stride, [1, 1]) => Strided::new(images, weights, padding, stride).map(Shape::Strided),
        _ => None,
    }
}
