//! Convolution, optionally with ReLU and max-pooling, and transposed convolution.

mod operation;
#[cfg(test)]
mod tests;

use super::linear::no_bias;
use super::operation as operations;
use super::padding::padding;
use super::pool::{relu_max_pool, side_by_side};
use super::relu;
use crate::conv::Shape;
use crate::host_tensor::is_flex;
use burn::module::Param;
use burn::nn::{
    PaddingConfig1d, PaddingConfig2d,
    conv::{Conv1d, Conv2d, ConvTranspose2d},
    pool::MaxPool2d,
};
use burn::tensor::{DType, FloatDType, Tensor};
use operation::{Convolution, Epilogue, Transposed};

/// Computes `layer.forward(x)`.
///
/// The kernels support one group. 16-bit images are convolved in f32; the result has their type. Burn adds the gradient of
/// an f16 weight in f16.
///
/// With a kernel of 3 × 3, stride 1 and many channels (Winograd), a NaN or infinite input makes other outputs of the same
/// 2 × 2 tile NaN as well.
pub fn conv(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(shape) => run(layer, x, Convolution { shape, epilogue: Epilogue::Nothing }),
        None => layer.forward(x),
    }
}

/// Computes `relu(layer.forward(x))`; see [`conv`].
pub fn conv_relu(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(shape) => run(layer, x, Convolution { shape, epilogue: Epilogue::Relu }),
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
        .filter(|shape| shape.outputs()[2..].iter().all(|&length| length > 1));
    match both {
        Some(shape) => run(layer, x, Convolution { shape, epilogue: Epilogue::Pooled }),
        None => relu_max_pool(pool, conv(layer, x)),
    }
}

/// Computes `layer.forward(x)`, as a convolution of images with one row; see [`conv`].
pub fn conv1d(layer: &Conv1d, x: Tensor<3>) -> Tensor<3> {
    let padding = match layer.padding {
        PaddingConfig1d::Valid => PaddingConfig2d::Valid,
        PaddingConfig1d::Same => PaddingConfig2d::Same,
        PaddingConfig1d::Explicit(left, right) => PaddingConfig2d::Explicit(0, left, 0, right),
    };
    let setting = Setting {
        stride: [1, layer.stride],
        dilation: [1, layer.dilation],
        groups: layer.groups,
        padding: &padding,
    };
    let ([batch, channels, length], [filters, inputs, taps]) = (x.dims(), layer.weight.dims());
    let shape = setting.shape([batch, channels, 1, length], [filters, inputs, 1, taps]);
    let Some(shape) = shape.filter(|_| is_covered(&x, &layer.weight)) else {
        return layer.forward(x);
    };
    let weight = layer.weight.val().unsqueeze_dim(2);
    let operation = Convolution { shape, epilogue: Epilogue::Nothing };
    in_f32(operation, x.unsqueeze_dim(2), weight, layer.bias.as_ref()).squeeze_dim(2)
}

/// Computes `layer.forward(x)`.
///
/// The kernel supports one group and an additional output padding smaller than the stride. 16-bit tensors as in [`conv`].
pub fn conv_transpose(layer: &ConvTranspose2d, x: Tensor<4>) -> Tensor<4> {
    match covered_transposed(layer, &x) {
        Some(shape) => in_f32(Transposed(shape), x, layer.weight.val(), layer.bias.as_ref()),
        None => layer.forward(x),
    }
}

fn run(layer: &Conv2d, x: Tensor<4>, operation: Convolution) -> Tensor<4> {
    in_f32(operation, x, layer.weight.val(), layer.bias.as_ref())
}

/// The operation in f32; the result has the type of `x`.
fn in_f32(
    operation: impl operations::Operation<3, 2>,
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: Option<&Param<Tensor<1>>>,
) -> Tensor<4> {
    let (f32, dtype) = (FloatDType::F32, FloatDType::from(x.dtype()));
    let bias = bias.map_or_else(|| no_bias(&weight.device()), |bias| bias.val());
    if dtype == f32 {
        return operations::run(operation, [x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()]);
    }
    let inputs =
        [x.cast(f32).into_dispatch(), weight.cast(f32).into_dispatch(), bias.cast(f32).into_dispatch()];
    operations::run::<4, _, _>(operation, inputs).cast(dtype)
}

/// Settings of a convolution layer in two dimensions.
struct Setting<'a> {
    stride: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    padding: &'a PaddingConfig2d,
}

impl Setting<'_> {
    /// The convolution of these images and weights, if the kernels support it.
    fn shape(&self, images: [usize; 4], weights: [usize; 4]) -> Option<Shape> {
        let ([_, _, size @ ..], [_, _, kernel @ ..]) = (images, weights);
        let padding = padding(self.padding, size, kernel, self.stride);
        let one_group = self.groups == 1;
        one_group.then(|| Shape::new(images, weights, padding, self.stride, self.dilation)).flatten()
    }
}

/// The shape, if the kernels support it.
fn covered(layer: &Conv2d, x: &Tensor<4>) -> Option<Shape> {
    let Conv2d { stride, dilation, groups, ref padding, .. } = *layer;
    let setting = Setting { stride, dilation, groups, padding };
    is_covered(x, &layer.weight).then(|| setting.shape(x.dims(), layer.weight.dims())).flatten()
}

/// The shape of the convolution whose output has the shape of `x`, if the kernels support it.
fn covered_transposed(layer: &ConvTranspose2d, x: &Tensor<4>) -> Option<Shape> {
    let ConvTranspose2d { stride, dilation, groups, padding: [top, left], padding_out, .. } = *layer;
    let ([batch, channels, height, width], weights @ [inputs, filters, rows, columns]) =
        (x.dims(), layer.weight.dims());
    if !is_covered(x, &layer.weight) || inputs != channels {
        return None;
    }
    let length = |axis: usize, length: usize, taps: usize, padding: usize| {
        let reach = dilation[axis].checked_mul(taps.checked_sub(1)?)?;
        let whole = length.checked_sub(1)?.checked_mul(stride[axis])?.checked_add(reach + 1)?;
        whole.checked_add(padding_out[axis])?.checked_sub(2 * padding)
    };
    let images = [batch, filters, length(0, height, rows, top)?, length(1, width, columns, left)?];
    let padding = PaddingConfig2d::Explicit(top, left, top, left);
    let shape = Setting { stride, dilation, groups, padding: &padding }.shape(images, weights)?;
    (shape.outputs() == x.dims()).then_some(shape)
}

/// Whether devices and types are those of the kernels.
fn is_covered<const D: usize>(x: &Tensor<D>, weight: &Param<Tensor<D>>) -> bool {
    let on_host = [x, &**weight].iter().all(|tensor| is_flex(&tensor.device()));
    on_host && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}
