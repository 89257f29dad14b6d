//! Layer normalisation with one launch, and its gradients with two.

use super::{
    block::{block_sum, blocks, blocks_for, dim, dim_for},
    tensors::{elements, empty, empty_like, exact, kernels, on_cuda, run},
};
use crate::autodiff::Backward;
use burn::backend::{Cube, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{Shape, Tensor};
use burn_cubecl::cubecl::{self, prelude::*};

/// Maximum number of blocks of threads of the backward pass, each of which adds gradients of parameters over its rows.
const BLOCKS: usize = 256;

/// Normalises each row in one block of threads.
#[cube(launch_unchecked)]
fn normalise_rows(
    x: &[f32],
    gamma: &[f32],
    beta: &[f32],
    output: &mut [f32],
    means: &mut [f32],
    inverse_deviations: &mut [f32],
    epsilon: f32,
    #[comptime] threads: usize,
) {
    let mut sums = Shared::<[f32]>::new_slice(threads);
    let width = gamma.len();
    let first = CUBE_POS * width;
    let thread = UNIT_POS as usize;
    let mut sum = 0.0f32;
    let mut at = thread;
    while at < width {
        sum += x[first + at];
        at += threads;
    }
    let mean = block_sum(sum, &mut sums) / width as f32;
    let mut squares = 0.0f32;
    let mut at = thread;
    while at < width {
        let difference = x[first + at] - mean;
        squares += difference * difference;
        at += threads;
    }
    let variance = block_sum(squares, &mut sums) / width as f32;
    let inverse = 1.0 / (variance + epsilon).sqrt();
    let mut at = thread;
    while at < width {
        output[first + at] = (x[first + at] - mean) * inverse * gamma[at] + beta[at];
        at += threads;
    }
    if thread == 0 {
        means[CUBE_POS] = mean;
        inverse_deviations[CUBE_POS] = inverse;
    }
}

/// Gradient of the input, and sums of the gradients of gamma and beta over the rows of each block, `[blocks, 2, width]`.
#[cube(launch_unchecked)]
fn row_gradients(
    x: &[f32],
    gamma: &[f32],
    means: &[f32],
    inverse_deviations: &[f32],
    upstream: &[f32],
    gradient: &mut [f32],
    partial: &mut [f32],
    rows_per_block: usize,
    #[comptime] threads: usize,
) {
    let mut sums = Shared::<[f32]>::new_slice(threads);
    let width = gamma.len();
    let thread = UNIT_POS as usize;
    let own = CUBE_POS * 2 * width;
    let mut at = thread;
    while at < width {
        partial[own + at] = 0.0;
        partial[own + width + at] = 0.0;
        at += threads;
    }
    let mut row = CUBE_POS * rows_per_block;
    let end = min(row + rows_per_block, means.len());
    while row < end {
        let first = row * width;
        let mean = means[row];
        let inverse = inverse_deviations[row];
        let mut sum = 0.0f32;
        let mut along = 0.0f32;
        let mut at = thread;
        while at < width {
            let normal = (x[first + at] - mean) * inverse;
            let slope = upstream[first + at];
            sum += slope * gamma[at];
            along += slope * gamma[at] * normal;
            partial[own + at] += slope * normal;
            partial[own + width + at] += slope;
            at += threads;
        }
        let sum = block_sum(sum, &mut sums) / width as f32;
        let along = block_sum(along, &mut sums) / width as f32;
        let mut at = thread;
        while at < width {
            let normal = (x[first + at] - mean) * inverse;
            gradient[first + at] = (upstream[first + at] * gamma[at] - sum - normal * along) * inverse;
            at += threads;
        }
        row += 1;
    }
}

/// Adds the partial sums of all blocks.
#[cube(launch_unchecked)]
fn add_partial(partial: &[f32], gamma: &mut [f32], beta: &mut [f32]) {
    let at = ABSOLUTE_POS;
    let width = gamma.len();
    if at < 2 * width {
        let mut sum = 0.0f32;
        let mut from = at;
        while from < partial.len() {
            sum += partial[from];
            from += 2 * width;
        }
        if at < width {
            gamma[at] = sum;
        } else {
            beta[at - width] = sum;
        }
    }
}

/// Normalises `x` over its last dimension, which is as long as `gamma` and `beta`.
///
/// `None` unless all are in f32, on one CUDA device and not empty.
pub(crate) fn layer_norm<const D: usize>(
    x: &Tensor<D>,
    gamma: &Tensor<1>,
    beta: &Tensor<1>,
    epsilon: f32,
) -> Option<Tensor<D>> {
    let [gamma, beta] = [gamma, beta].map(|parameter| parameter.clone().into_dispatch());
    run([x.clone().into_dispatch(), gamma, beta], |inputs| forward(inputs, epsilon))
}

fn forward(
    inputs: [FloatTensor<Cube>; 3],
    epsilon: f32,
) -> Option<(FloatTensor<Cube>, impl Backward<Cube, 3>)> {
    if !on_cuda(&inputs) {
        return None;
    }
    let [x, gamma, beta] = inputs;
    let rows = x.shape().num_elements() / gamma.shape().num_elements();
    let run = move |tensors: [_; 3]| {
        let [x, gamma, beta] = tensors.map(exact);
        let output = empty_like(&x);
        let [means, inverse_deviations] = [(); 2].map(|()| empty(&x, Shape::new([rows])));
        let (dim, threads) = dim_for(elements(&gamma));
        // SAFETY: every index is below the length of its tensor, because gamma and beta are as long as a row.
        unsafe {
            normalise_rows::launch_unchecked(
                &x.client.clone(),
                blocks(rows),
                dim,
                x.into_buffer_arg(),
                gamma.into_buffer_arg(),
                beta.into_buffer_arg(),
                output.clone().into_buffer_arg(),
                means.clone().into_buffer_arg(),
                inverse_deviations.clone().into_buffer_arg(),
                epsilon,
                threads,
            );
        }
        Ok([output, means, inverse_deviations])
    };
    let shapes = [x.shape(), Shape::new([rows]), Shape::new([rows])];
    let [output, statistics @ ..] = kernels("layer norm", [x.clone(), gamma.clone(), beta], shapes, run);
    Some((output, move |[]: [_; 0], upstream, _| gradients(x, gamma, statistics, upstream).map(Some)))
}

/// Gradients of `x`, gamma and beta, from the mean and the inverse standard deviation of each row.
fn gradients(
    x: FloatTensor<Cube>,
    gamma: FloatTensor<Cube>,
    [means, inverse_deviations]: [FloatTensor<Cube>; 2],
    upstream: FloatTensor<Cube>,
) -> [FloatTensor<Cube>; 3] {
    let shapes = [x.shape(), gamma.shape(), gamma.shape()];
    let run = |tensors: [_; 5]| {
        let [x, gamma, means, inverse_deviations, upstream] = tensors.map(exact);
        let (rows, width) = (elements(&means), elements(&gamma));
        let rows_per_block = rows.div_ceil(BLOCKS);
        let parts = rows.div_ceil(rows_per_block);
        let partial = empty(&x, Shape::new([parts, 2, width]));
        let for_x = empty_like(&x);
        let [for_gamma, for_beta] = [(); 2].map(|()| empty_like(&gamma));
        let client = x.client.clone();
        let (row_dim, threads) = dim_for(width);
        // SAFETY: every index is below the length of its tensor.
        unsafe {
            row_gradients::launch_unchecked(
                &client,
                blocks(parts),
                row_dim,
                x.into_buffer_arg(),
                gamma.into_buffer_arg(),
                means.into_buffer_arg(),
                inverse_deviations.into_buffer_arg(),
                upstream.into_buffer_arg(),
                for_x.clone().into_buffer_arg(),
                partial.clone().into_buffer_arg(),
                rows_per_block,
                threads,
            );
            add_partial::launch_unchecked(
                &client,
                blocks_for(2 * width),
                dim(),
                partial.into_buffer_arg(),
                for_gamma.clone().into_buffer_arg(),
                for_beta.clone().into_buffer_arg(),
            );
        }
        Ok([for_x, for_gamma, for_beta])
    };
    kernels("layer norm gradients", [x, gamma, means, inverse_deviations, upstream], shapes, run)
}
