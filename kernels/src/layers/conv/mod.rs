//! Convolution, optionally with ReLU and max-pooling, and transposed convolution.

mod operation;
#[cfg(test)]
mod tests;

use super::linear::no_bias;
use super::operation::run;
use super::padding::{of_one_row, padding};
use super::pool::{relu_max_pool, side_by_side};
use super::relu;
use crate::autodiff::Backward;
use crate::conv::{Depthwise, Shape};
use crate::host_tensor::{Host, is_flex};
use burn::backend::Flex;
use burn::module::Param;
use burn::nn::{
    conv::{Conv1d, Conv2d, ConvTranspose1d, ConvTranspose2d},
    pool::MaxPool2d,
};
use burn::tensor::{DType, FloatDType, Tensor};
use operation::{Epilogue, convolution, depthwise, grouped, transposed};

/// Computes `layer.forward(x)`.
///
/// 16-bit images are convolved in f32; the result has their type. Burn adds the gradient of an f16 weight in f16.
///
/// With a kernel of 3 × 3, stride 1 and many channels (Winograd), a NaN or infinite input makes other outputs of the same
/// 2 × 2 tile NaN as well. With a group for each channel, it may make other gradients NaN.
///
/// On a CUDA device in f32, without groups, the gradients of weight and bias take three launches. The bias's is part of a
/// matrix product, which is in TF32 where Burn's products are.
pub fn conv(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(kernel) => kernel.run(x, layer.weight.val(), &layer.bias),
        None => on_another_device(layer, x),
    }
}

/// Computes `layer.forward(x)` without the kernels for a CPU.
fn on_another_device(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    #[cfg(feature = "cuda")]
    if let Some(output) = crate::cuda::conv2d(layer, &x) {
        return output;
    }
    layer.forward(x)
}

/// Computes `relu(layer.forward(x))`; see [`conv`].
pub fn conv_relu(layer: &Conv2d, x: Tensor<4>) -> Tensor<4> {
    match covered(layer, &x) {
        Some(Kernel::Convolution { shape, groups: 1 }) => {
            in_f32(x, layer.weight.val(), &layer.bias, |inputs| convolution(shape, Epilogue::Relu, inputs))
        }
        _ => relu(conv(layer, x)),
    }
}

/// Computes `pool.forward(relu(layer.forward(x)))`; see [`conv`].
///
/// It is one operation if the windows are 2 × 2 with stride 2.
pub fn conv_relu_max_pool(layer: &Conv2d, pool: &MaxPool2d, x: Tensor<4>) -> Tensor<4> {
    let covers = pool.kernel_size == [2, 2] && side_by_side(pool);
    match covers.then(|| covered(layer, &x)).flatten() {
        Some(Kernel::Convolution { shape, groups: 1 })
            if shape.outputs()[2..].iter().all(|&length| length > 1) =>
        {
            in_f32(x, layer.weight.val(), &layer.bias, |inputs| convolution(shape, Epilogue::Pooled, inputs))
        }
        _ => relu_max_pool(pool, conv(layer, x)),
    }
}

/// Computes `layer.forward(x)`, as a convolution of images with one row; see [`conv`].
pub fn conv1d(layer: &Conv1d, x: Tensor<3>) -> Tensor<3> {
    let (stride, dilation) = ([1, layer.stride], [1, layer.dilation]);
    let ([batch, channels, length], [filters, inputs, taps]) = (x.dims(), layer.weight.dims());
    let padding = padding(&of_one_row(&layer.padding), [1, length], [1, taps], stride);
    let (images, weights) = ([batch, channels, 1, length], [filters, inputs, 1, taps]);
    let kernel = Kernel::new(images, weights, padding, stride, dilation, layer.groups);
    match kernel {
        Some(kernel) if is_covered(&x, &layer.weight) => {
            let (x, weight) = (x.unsqueeze_dim(2), layer.weight.val().unsqueeze_dim(2));
            kernel.run(x, weight, &layer.bias).squeeze_dim(2)
        }
        _ => layer.forward(x),
    }
}

/// Computes `layer.forward(x)`.
///
/// The kernel supports an additional output padding smaller than the stride, and groups with more than one filter each.
/// 16-bit tensors as in [`conv`].
pub fn conv_transpose(layer: &ConvTranspose2d, x: Tensor<4>) -> Tensor<4> {
    let ConvTranspose2d { stride, dilation, groups, padding, padding_out, .. } = *layer;
    let spans = [stride, dilation, padding, padding_out];
    match Kernel::transposed(x.dims(), layer.weight.dims(), spans, groups) {
        Some(kernel) if is_covered(&x, &layer.weight) => kernel.run(x, layer.weight.val(), &layer.bias),
        _ => layer.forward(x),
    }
}

/// Computes `layer.forward(x)`, as a transposed convolution of images with one row; see [`conv_transpose`].
pub fn conv_transpose1d(layer: &ConvTranspose1d, x: Tensor<3>) -> Tensor<3> {
    let ([batch, channels, length], [inputs, filters, taps]) = (x.dims(), layer.weight.dims());
    let spans = [[1, layer.stride], [1, layer.dilation], [0, layer.padding], [0, layer.padding_out]];
    let (images, weights) = ([batch, channels, 1, length], [inputs, filters, 1, taps]);
    match Kernel::transposed(images, weights, spans, layer.groups) {
        Some(kernel) if is_covered(&x, &layer.weight) => {
            let (x, weight) = (x.unsqueeze_dim(2), layer.weight.val().unsqueeze_dim(2));
            kernel.run(x, weight, &layer.bias).squeeze_dim(2)
        }
        _ => layer.forward(x),
    }
}

/// How a convolution is computed.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    /// A convolution of `shape` for each group.
    Convolution {
        shape: Shape,
        groups: usize,
    },
    /// The gradient of the images of such convolutions.
    Transposed {
        shape: Shape,
        groups: usize,
    },
    Depthwise(Depthwise),
}

impl Kernel {
    /// The kernel for these images and weights, if there is one; `padding` is the zeros before and after, by axis.
    fn new(
        images: [usize; 4],
        weights: [usize; 4],
        padding: [[usize; 2]; 2],
        stride: [usize; 2],
        dilation: [usize; 2],
        groups: usize,
    ) -> Option<Self> {
        let ([batch, channels, height, width], [filters, inputs, rows, columns]) = (images, weights);
        if groups > 1 && groups == channels && inputs == 1 {
            return Depthwise::new(images, weights, padding, stride, dilation).map(Kernel::Depthwise);
        }
        let divided = groups > 0 && channels == groups * inputs && filters.is_multiple_of(groups);
        if !divided {
            return None;
        }
        let (images, weights) = ([batch, inputs, height, width], [filters / groups, inputs, rows, columns]);
        let shape = Shape::new(images, weights, padding, stride, dilation)?;
        Some(Kernel::Convolution { shape, groups })
    }

    /// The kernel for a transposed convolution, if there is one.
    ///
    /// Weights are `[channels, filters / groups, rows, columns]`; `spans` are stride, dilation, padding and output padding.
    fn transposed(
        images: [usize; 4],
        weights: [usize; 4],
        [stride, dilation, padding, padding_out]: [[usize; 2]; 4],
        groups: usize,
    ) -> Option<Self> {
        let ([batch, channels, height, width], [inputs, filters, rows, columns]) = (images, weights);
        if inputs != channels {
            return None;
        }
        let length = |axis: usize, length: usize, taps: usize| {
            let reach = dilation[axis].checked_mul(taps.checked_sub(1)?)?;
            let whole = length.checked_sub(1)?.checked_mul(stride[axis])?.checked_add(reach + 1)?;
            whole.checked_add(padding_out[axis])?.checked_sub(2 * padding[axis])
        };
        let outputs = [batch, filters * groups, length(0, height, rows)?, length(1, width, columns)?];
        match Kernel::new(outputs, weights, padding.map(|zeros| [zeros; 2]), stride, dilation, groups)? {
            Kernel::Convolution { shape, groups } if shape.outputs()[2..] == [height, width] => {
                Some(Kernel::Transposed { shape, groups })
            }
            _ => None,
        }
    }

    fn run(self, x: Tensor<4>, weight: Tensor<4>, bias: &Option<Param<Tensor<1>>>) -> Tensor<4> {
        match self {
            Kernel::Convolution { shape, groups } => {
                in_groups(groups, x, weight, bias, |inputs| convolution(shape, Epilogue::Nothing, inputs))
            }
            Kernel::Transposed { shape, groups } => {
                in_groups(groups, x, weight, bias, |inputs| transposed(shape, inputs))
            }
            Kernel::Depthwise(shape) => in_f32(x, weight, bias, |inputs| depthwise(shape, inputs)),
        }
    }
}

/// An operation for each group of channels in f32.
fn in_groups<F: Backward<Flex, 3, 2>>(
    groups: usize,
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: &Option<Param<Tensor<1>>>,
    each: impl Fn([Host; 3]) -> (Host, F),
) -> Tensor<4> {
    match groups {
        1 => in_f32(x, weight, bias, each),
        _ => in_f32(x, weight, bias, |inputs| grouped(groups, inputs, each)),
    }
}

/// An operation of images, weights and bias in f32; the result has the type of `x`.
fn in_f32<F: Backward<Flex, 3, 2>>(
    x: Tensor<4>,
    weight: Tensor<4>,
    bias: &Option<Param<Tensor<1>>>,
    forward: impl FnOnce([Host; 3]) -> (Host, F),
) -> Tensor<4> {
    let (f32, dtype) = (FloatDType::F32, FloatDType::from(x.dtype()));
    let bias = bias.as_ref().map_or_else(|| no_bias(&weight.device()), |bias| bias.val());
    if dtype == f32 {
        return run([x.into_dispatch(), weight.into_dispatch(), bias.into_dispatch()], forward);
    }
    let inputs =
        [x.cast(f32).into_dispatch(), weight.cast(f32).into_dispatch(), bias.cast(f32).into_dispatch()];
    run::<_, 4, _, _>(inputs, forward).cast(dtype)
}

/// The kernel for a layer, if there is one.
fn covered(layer: &Conv2d, x: &Tensor<4>) -> Option<Kernel> {
    let Conv2d { stride, dilation, groups, .. } = *layer;
    let (images @ [.., height, width], weights @ [.., rows, columns]) = (x.dims(), layer.weight.dims());
    let padding = padding(&layer.padding, [height, width], [rows, columns], stride);
    let kernel =
        is_covered(x, &layer.weight).then(|| Kernel::new(images, weights, padding, stride, dilation, groups));
    kernel.flatten()
}

/// Whether devices and types are those of the kernels.
fn is_covered<const D: usize>(x: &Tensor<D>, weight: &Param<Tensor<D>>) -> bool {
    let on_host = [x, &**weight].iter().all(|tensor| is_flex(&tensor.device()));
    on_host && matches!(x.dtype(), DType::F32 | DType::F16 | DType::BF16)
}
