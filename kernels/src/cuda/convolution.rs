//! Convolution whose gradients of weight and bias take three launches.
//!
//! The weight's gradient is the product of the outputs' gradients and of the inputs that each output reads ("im2col",
//! Chellapilla et al. 2006, "High performance convolutional neural networks for document processing"). Burn gathers these
//! inputs with two launches for each tap of the kernel. Another input, which is one, gives the bias's gradient.

use super::{
    block::{THREADS, blocks, blocks_for, dim},
    tensors::{elements, empty, kernels, on_cuda, product, run},
};
use crate::{autodiff::Backward, conv, layers::padding::padding};
use burn::backend::{
    Autodiff, Cube, ExecutionError, TensorMetadata,
    ops::{ConvOptions, ModuleOps},
    tensor::FloatTensor,
};
use burn::nn::conv::Conv2d;
use burn::tensor::{Shape, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    ops::{permute, reshape},
    tensor::CubeTensor,
};

/// Maximum number of gathered inputs: 64 MiB. For more of them, Burn's choice of an algorithm matters more than launches.
const MOST_COLUMNS: usize = 1 << 24;

impl conv::Shape {
    /// The shape of a layer's convolution, for any numbers of images and filters; `None` if the kernels do not cover it.
    fn from_layer(layer: &Conv2d, x: [usize; 4], weight: [usize; 4]) -> Option<Self> {
        let Conv2d { stride, dilation, groups, .. } = *layer;
        let ([_, _, size @ ..], [_, _, kernel @ ..]) = (x, weight);
        let padding = padding(&layer.padding, size, kernel, stride);
        let shape = Self::new(x, weight, padding, stride, dilation).filter(|_| groups == 1)?;
        let [images, _, rows, columns] = shape.outputs();
        let gathered =
            [images, rows, columns, shape.columns()].into_iter().try_fold(1, usize::checked_mul)?;
        (gathered <= MOST_COLUMNS).then_some(Self { batch: 1, filters: 1, ..shape })
    }

    fn options(&self) -> ConvOptions<2> {
        let padding = [0, 1].map(|axis| (self.padding[axis], self.after[axis]));
        ConvOptions::new_with_padding(self.stride, padding, self.dilation, 1)
    }

    /// Columns of the gathered inputs: with the bias's, and zeros up to a multiple of four, for vectors.
    fn columns(&self) -> usize {
        (self.taps() + 1).next_multiple_of(4)
    }
}

/// Gathers the inputs of each output, `[images, outputs, columns]`.
#[cube(launch_unchecked)]
fn gather_inputs(x: &[f32], strides: Sequence<usize>, columns: &mut [f32], #[comptime] of: conv::Shape) {
    let at = ABSOLUTE_POS;
    if at < columns.len() {
        let pixels = comptime![of.output[0] * of.output[1]];
        let row = at / comptime![of.columns()];
        let column = at - row * comptime![of.columns()];
        let image = row / pixels;
        let output = row - image * pixels;
        let output_y = output / comptime![of.output[1]];
        let output_x = output - output_y * comptime![of.output[1]];
        let channel = column / comptime![of.kernel[0] * of.kernel[1]];
        let tap = column - channel * comptime![of.kernel[0] * of.kernel[1]];
        let tap_y = tap / comptime![of.kernel[1]];
        let tap_x = tap - tap_y * comptime![of.kernel[1]];
        // In the padded image.
        let y = output_y * comptime![of.stride[0]] + tap_y * comptime![of.dilation[0]];
        let x_ = output_x * comptime![of.stride[1]] + tap_x * comptime![of.dilation[1]];
        let (top, left) = comptime![(of.padding[0], of.padding[1])];
        let (bottom, right) = comptime![(top + of.size[0], left + of.size[1])];
        let inputs = comptime![of.taps()];
        let mut value = select(column == inputs, 1.0f32, 0.0f32);
        if column < inputs && y >= top && y < bottom && x_ >= left && x_ < right {
            let place = image * strides[0] + channel * strides[1];
            value = x[place + (y - top) * strides[2] + (x_ - left) * strides[3]];
        }
        columns[at] = value;
    }
}

/// Elements of a block of [`add_images`], each with a thread for every eighth image.
const ELEMENTS: usize = THREADS / 8;

/// Adds the gradients of all images, `[images, filters, columns]`.
#[cube(launch_unchecked)]
fn add_images(
    gradients: &[f32],
    strides: Sequence<usize>,
    images: usize,
    weight: &mut [f32],
    bias: &mut [f32],
    #[comptime] inputs: usize,
) {
    let mut sums = Shared::<[f32]>::new_slice(THREADS);
    let thread = UNIT_POS as usize;
    let at = CUBE_POS * ELEMENTS + thread % ELEMENTS;
    let filter = at / comptime![inputs + 1];
    let column = at - filter * comptime![inputs + 1];
    let inside = filter < bias.len();
    let mut sum = 0.0f32;
    if inside {
        let mut image = thread / ELEMENTS;
        while image < images {
            sum += gradients[image * strides[0] + filter * strides[1] + column * strides[2]];
            image += comptime![THREADS / ELEMENTS];
        }
    }
    sums[thread] = sum;
    sync_cube();
    if thread < ELEMENTS && inside {
        let mut sum = 0.0f32;
        for part in 0..comptime![THREADS / ELEMENTS] {
            sum += sums[thread + part * ELEMENTS];
        }
        if column < inputs {
            weight[filter * inputs + column] = sum;
        } else {
            bias[filter] = sum;
        }
    }
}

/// Gradients of weight and bias, from the images and the outputs' gradients with any strides.
fn gradients(
    x: CubeTensor,
    upstream: CubeTensor,
    of: conv::Shape,
) -> Result<[CubeTensor; 2], ExecutionError> {
    let [images, filters] = [0, 1].map(|dim| upstream.shape()[dim]);
    let outputs = of.output[0] * of.output[1];
    let columns = empty(&x, Shape::new([images, outputs, of.columns()]));
    let weight = empty(&x, Shape::new([filters, of.channels, of.kernel[0], of.kernel[1]]));
    let bias = empty(&x, Shape::new([filters]));
    let strides = |tensor: &CubeTensor| tensor.meta.strides().iter().copied().collect();
    let (client, of_x) = (x.client.clone(), strides(&x));
    // SAFETY: every index is one of `x`, whose strides are given, or below the number of columns.
    unsafe {
        gather_inputs::launch_unchecked(
            &client,
            blocks_for(elements(&columns)),
            dim(),
            x.into_buffer_arg(),
            of_x,
            columns.clone().into_buffer_arg(),
            of,
        );
    }
    let upstream = if upstream.is_contiguous() {
        reshape(upstream, Shape::new([images, filters, outputs]))
    } else {
        // Burn's convolutions have channels last, of which this makes no copy.
        let rows = reshape(permute(upstream, &[0, 2, 3, 1]), Shape::new([images, outputs, filters]));
        permute(rows, &[0, 2, 1])
    };
    let all = product(upstream, columns)?;
    let of_all = strides(&all);
    // SAFETY: every index is one of `all`, whose strides are given, or below the number of weights or filters.
    unsafe {
        add_images::launch_unchecked(
            &client,
            blocks((filters * (of.taps() + 1)).div_ceil(ELEMENTS)),
            dim(),
            all.into_buffer_arg(),
            of_all,
            images,
            weight.clone().into_buffer_arg(),
            bias.clone().into_buffer_arg(),
            of.taps(),
        );
    }
    Ok([weight, bias])
}

/// Computes `layer.forward(x)`, with another computation of the weight's gradient.
///
/// `None` without autodiff, with groups or more than [`MOST_COLUMNS`] gathered inputs, and unless `x` and the weight are in
/// f32 on one CUDA device, not empty, and have the same channels.
pub(crate) fn conv2d(layer: &Conv2d, x: &Tensor<4>) -> Option<Tensor<4>> {
    // `val` counts as a use of the parameter, dereferencing does not.
    let values = [x, &*layer.weight].map(|tensor| tensor.clone().try_into_primitive::<Autodiff<Cube>>());
    let [Ok(x_value), Ok(weight)] = values else { return None };
    let values = [x_value, weight].map(|tensor| tensor.into_primitive());
    if !on_cuda(&values) {
        return None;
    }
    let shape = conv::Shape::from_layer(layer, values[0].shape().dims(), values[1].shape().dims())?;
    let (x, weight) = (x.clone().into_dispatch(), layer.weight.val().into_dispatch());
    match &layer.bias {
        Some(bias) => {
            let inputs = [x, weight, bias.val().into_dispatch()];
            run(inputs, |[x, weight, bias]| Some(forward::<3>(x, weight, Some(bias), shape)))
        }
        None => run([x, weight], |[x, weight]| Some(forward::<2>(x, weight, None, shape))),
    }
}

/// The output, and the backward pass with `N` inputs.
fn forward<const N: usize>(
    x: FloatTensor<Cube>,
    weight: FloatTensor<Cube>,
    bias: Option<FloatTensor<Cube>>,
    shape: conv::Shape,
) -> (FloatTensor<Cube>, impl Backward<Cube, N>) {
    let output = Cube::conv2d(x.clone(), weight.clone(), bias, shape.options());
    let backward = move |[]: [_; 0], upstream: FloatTensor<Cube>, wanted: [bool; N]| {
        let for_x = wanted[0]
            .then(|| Cube::conv2d_x_backward(x.clone(), weight.clone(), upstream.clone(), shape.options()));
        let mut results = vec![for_x];
        if wanted[1..].contains(&true) {
            let run = move |[x, upstream]: [_; 2]| gradients(x, upstream, shape);
            let shapes = [weight.shape(), Shape::new([weight.shape()[0]])];
            results.extend(kernels("convolution gradients", [x, upstream], shapes, run).map(Some));
        }
        std::array::from_fn(|at| results.get_mut(at).and_then(Option::take))
    };
    (output, backward)
}
