//! Causal self-attention as one operation: Burn's matrix products, and kernels for heads and softmax between them.

use super::{
    block::{block_max, block_sum, blocks, blocks_for, dim, dim_for},
    many::buffers,
    tensors::{elements, empty, exact, is_indexable, kernels, on_cuda, product, run},
};
use crate::autodiff::Backward;
use burn::backend::{Cube, tensor::FloatTensor};
use burn::tensor::{Shape, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    ops::permute,
    tensor::CubeTensor,
};

/// A value of one of the parts of rows `[batch × time, parts × heads × head width]`.
#[derive(CubeType)]
struct Place {
    part: usize,
    /// Index in the part, `[batch, heads, time, head width]`.
    index: usize,
}

#[cube]
fn place(at: usize, time: usize, heads: usize, head_width: usize, #[comptime] parts: usize) -> Place {
    let width = heads * head_width;
    let row = at / (width * parts);
    let column = at - row * width * parts;
    let part = column / width;
    let column = column - part * width;
    let head = column / head_width;
    let sequence = row / time;
    let position = row - sequence * time;
    let index = ((sequence * heads + head) * time + position) * head_width + (column - head * head_width);
    Place { part, index }
}

/// Splits rows into parts, or joins parts into rows; the first part is multiplied by `scale`.
#[cube(launch_unchecked)]
fn move_heads(
    rows: &mut [f32],
    mut parts: Sequence<Box<[f32]>>,
    time: usize,
    heads: usize,
    head_width: usize,
    scale: f32,
    #[comptime] splits: bool,
) {
    let at = ABSOLUTE_POS;
    if at < rows.len() {
        let place = place(at, time, heads, head_width, parts.len());
        #[unroll]
        for i in 0..parts.len() {
            if place.part == i {
                let part = parts.index_mut(i);
                let value = if comptime![splits] { rows[at] } else { part[place.index] };
                let value = if comptime![i == 0] { value * scale } else { value };
                if comptime![splits] {
                    part[place.index] = value;
                } else {
                    rows[at] = value;
                }
            }
        }
    }
}

/// Replaces the scores of each query, `[…, time, time]`, by their softmax over the keys up to its own position.
#[cube(launch_unchecked)]
fn causal_softmax(scores: &mut [f32], time: usize, #[comptime] threads: usize) {
    let mut shared = Shared::<[f32]>::new_slice(threads);
    let first = CUBE_POS * time;
    let seen = CUBE_POS % time + 1;
    let thread = UNIT_POS as usize;
    let mut largest = scores[first];
    let mut at = thread;
    while at < seen {
        largest = max(largest, scores[first + at]);
        at += threads;
    }
    let largest = block_max(largest, &mut shared);
    let mut sum = 0.0f32;
    let mut at = thread;
    while at < seen {
        let weight = (scores[first + at] - largest).exp();
        scores[first + at] = weight;
        sum += weight;
        at += threads;
    }
    let sum = block_sum(sum, &mut shared);
    let mut at = thread;
    while at < time {
        scores[first + at] = select(at < seen, scores[first + at] / sum, 0.0f32);
        at += threads;
    }
}

/// Replaces the gradients of the weights, `[…, time, time]`, by those of the scores.
#[cube(launch_unchecked)]
fn softmax_gradients(weights: &[f32], gradients: &mut [f32], time: usize, #[comptime] threads: usize) {
    let mut shared = Shared::<[f32]>::new_slice(threads);
    let first = CUBE_POS * time;
    let thread = UNIT_POS as usize;
    let mut along = 0.0f32;
    let mut at = thread;
    while at < time {
        along += weights[first + at] * gradients[first + at];
        at += threads;
    }
    let along = block_sum(along, &mut shared);
    let mut at = thread;
    while at < time {
        gradients[first + at] = weights[first + at] * (gradients[first + at] - along);
        at += threads;
    }
}

/// Sizes of attention.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    batch: usize,
    time: usize,
    heads: usize,
    head_width: usize,
}

impl Sizes {
    fn part(&self) -> Shape {
        Shape::new([self.batch, self.heads, self.time, self.head_width])
    }

    fn weights(&self) -> Shape {
        Shape::new([self.batch, self.heads, self.time, self.time])
    }

    fn rows(&self, parts: usize) -> Shape {
        Shape::new([self.batch * self.time, parts * self.heads * self.head_width])
    }

    /// Factor of the scores.
    fn scale(&self) -> f32 {
        (self.head_width as f32).powf(-0.5)
    }

    /// The parts of rows.
    fn split<const N: usize>(&self, rows: CubeTensor, scale: f32) -> [CubeTensor; N] {
        let parts = [(); N].map(|()| empty(&rows, self.part()));
        self.move_heads(rows, &parts, scale, true);
        parts
    }

    /// The rows of parts.
    fn join<const N: usize>(&self, parts: [CubeTensor; N], scale: f32) -> CubeTensor {
        let rows = empty(&parts[0], self.rows(N));
        self.move_heads(rows.clone(), &parts.map(exact), scale, false);
        rows
    }

    fn move_heads(&self, rows: CubeTensor, parts: &[CubeTensor], scale: f32, splits: bool) {
        let (client, count) = (rows.client.clone(), blocks_for(elements(&rows)));
        // SAFETY: the parts have as many elements as the rows.
        unsafe {
            move_heads::launch_unchecked(
                &client,
                count,
                dim(),
                rows.into_buffer_arg(),
                buffers(parts.iter()),
                self.time,
                self.heads,
                self.head_width,
                scale,
                splits,
            );
        }
    }

    /// Causal attention weights of scores.
    fn softmax(&self, scores: CubeTensor) -> CubeTensor {
        let scores = exact(scores);
        let (dim, threads) = dim_for(self.time);
        let (buffer, rows) = (scores.clone().into_buffer_arg(), elements(&scores) / self.time);
        // SAFETY: each block changes a row of its own.
        unsafe {
            causal_softmax::launch_unchecked(&scores.client, blocks(rows), dim, buffer, self.time, threads);
        }
        scores
    }

    /// Gradients of the scores from those of the weights.
    fn softmax_gradients(&self, weights: CubeTensor, gradients: CubeTensor) -> CubeTensor {
        let gradients = exact(gradients);
        let (dim, threads) = dim_for(self.time);
        let (buffer, rows) = (gradients.clone().into_buffer_arg(), elements(&gradients) / self.time);
        // SAFETY: each block changes a row of its own, and both tensors have the same shape.
        unsafe {
            softmax_gradients::launch_unchecked(
                &gradients.client,
                blocks(rows),
                dim,
                weights.into_buffer_arg(),
                buffer,
                self.time,
                threads,
            );
        }
        gradients
    }
}

fn transposed(tensor: &CubeTensor) -> CubeTensor {
    permute(tensor.clone(), &[0, 1, 3, 2])
}

/// Causal self-attention of queries, keys and values, `[batch × time, 3 × width]`, without dropout.
///
/// `None` unless they are in f32 on a CUDA device and not empty, and kernels can index the attention weights.
pub(crate) fn causal_attention(
    rows: &Tensor<2>,
    [batch, time]: [usize; 2],
    heads: usize,
) -> Option<Tensor<2>> {
    let sizes = Sizes { batch, time, heads, head_width: rows.dims()[1] / 3 / heads };
    run([rows.clone().into_dispatch()], |[rows]| forward(rows, sizes))
}

fn forward(rows: FloatTensor<Cube>, sizes: Sizes) -> Option<(FloatTensor<Cube>, impl Backward<Cube, 1>)> {
    if !is_indexable(sizes.weights().num_elements()) || !on_cuda(std::slice::from_ref(&rows)) {
        return None;
    }
    let run = move |[rows]: [_; 1]| {
        let rows = exact(rows);
        let [query, key, value] = sizes.split(rows, sizes.scale());
        let weights = sizes.softmax(product(query.clone(), transposed(&key))?);
        let context = sizes.join([product(weights.clone(), value.clone())?], 1.0);
        Ok([context, query, key, value, weights])
    };
    let part = sizes.part();
    let shapes = [sizes.rows(1), part.clone(), part.clone(), part, sizes.weights()];
    // Scaled queries, keys, values and weights.
    let [context, saved @ ..] = kernels("causal attention", [rows], shapes, run);
    Some((context, move |[]: [_; 0], upstream, _| gradient(sizes, saved, upstream).map(Some)))
}

/// Gradient of the rows, from queries (scaled), keys, values and weights.
fn gradient(
    sizes: Sizes,
    [query, key, value, weights]: [FloatTensor<Cube>; 4],
    upstream: FloatTensor<Cube>,
) -> [FloatTensor<Cube>; 1] {
    let run = move |tensors: [_; 5]| {
        let [query, key, value, weights, upstream] = tensors.map(exact);
        let [upstream] = sizes.split(upstream, 1.0);
        let for_value = product(transposed(&weights), upstream.clone())?;
        let for_weights = product(upstream, transposed(&value))?;
        let for_scores = sizes.softmax_gradients(weights, for_weights);
        let for_query = product(for_scores.clone(), key)?;
        let for_key = product(transposed(&for_scores), query)?;
        Ok([sizes.join([for_query, for_key, for_value], sizes.scale())])
    };
    let inputs = [query, key, value, weights, upstream];
    kernels("causal attention gradient", inputs, [sizes.rows(3)], run)
}
