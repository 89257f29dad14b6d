//! Operations on many tensors with one launch: sums of squares, scaling and concatenation; and the parts of a concatenation.
//!
//! A launch takes up to [`MOST`] tensors. Each block of threads computes one chunk of one tensor.

use super::{
    block::{self, THREADS},
    tensors::{all, elements, empty, empty_like, on_cuda, operation, part},
};
use burn::backend::{Cube, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

/// Maximum number of tensors of a launch, whose pointers are parameters of the kernel.
pub(super) const MOST: usize = 32;
/// Elements that a block computes.
pub(super) const CHUNK: usize = 4096;

/// The parts of a concatenation begin at multiples of this number of elements, 256 bytes, so that kernels can read them
/// with vectors.
const ALIGNMENT: usize = 64;

/// The elements of a tensor that a thread computes: `first`, and every [`THREADS`]-th after it before `end`.
#[derive(CubeType)]
pub(super) struct ThreadElements {
    pub first: usize,
    pub end: usize,
}

/// Elements of a tensor of `length` whose blocks start at block `begin`; none in the blocks of other tensors.
#[cube]
pub(super) fn thread_elements(begin: usize, length: usize, #[comptime] chunk: usize) -> ThreadElements {
    let mut first = 0;
    let mut end = 0;
    if CUBE_POS >= begin && CUBE_POS < begin + length.div_ceil(chunk) {
        let from = (CUBE_POS - begin) * chunk;
        first = from + UNIT_POS as usize;
        end = min(from + chunk, length);
    }
    ThreadElements { first, end }
}

/// Sums of squares of one chunk, by thread, of the values and of the values multiplied by `down`.
#[cube(launch_unchecked)]
fn sums_of_squares(tensors: Sequence<Box<[f32]>>, sums: &mut [f32], down: f32, #[comptime] chunk: usize) {
    let mut sum = 0.0f32;
    let mut low = 0.0f32;
    let mut begin = 0;
    #[unroll]
    for i in 0..tensors.len() {
        let tensor = tensors.index(i);
        let length = tensor.len();
        let own = thread_elements(begin, length, chunk);
        let mut at = own.first;
        while at < own.end {
            let value = tensor[at];
            let small = value * down;
            sum += value * value;
            low += small * small;
            at += CUBE_DIM as usize;
        }
        begin += length.div_ceil(chunk);
    }
    let half = sums.len() / 2;
    let at = CUBE_POS * CUBE_DIM as usize + UNIT_POS as usize;
    sums[at] = sum;
    sums[half + at] = low;
}

/// Multiplies every tensor by `factor[0]`.
#[cube(launch_unchecked)]
fn scale_all(
    tensors: Sequence<Box<[f32]>>,
    mut scaled: Sequence<Box<[f32]>>,
    factor: &[f32],
    #[comptime] chunk: usize,
) {
    let factor = factor[0];
    let mut begin = 0;
    #[unroll]
    for i in 0..tensors.len() {
        let tensor = tensors.index(i);
        let length = tensor.len();
        let own = thread_elements(begin, length, chunk);
        let output = scaled.index_mut(i);
        let mut at = own.first;
        while at < own.end {
            output[at] = tensor[at] * factor;
            at += CUBE_DIM as usize;
        }
        begin += length.div_ceil(chunk);
    }
}

/// Writes every tensor behind the previous one, with zeros up to the next aligned element. The first `scaled` ones are
/// multiplied by `factor`.
#[cube(launch_unchecked)]
fn concatenate_all(
    tensors: Sequence<Box<[f32]>>,
    whole: &mut [f32],
    factor: f32,
    #[comptime] scaled: usize,
    #[comptime] chunk: usize,
) {
    let mut begin = 0;
    let mut place = 0;
    #[unroll]
    for i in 0..tensors.len() {
        let tensor = tensors.index(i);
        let length = tensor.len();
        let padded = length.div_ceil(ALIGNMENT) * ALIGNMENT;
        let own = thread_elements(begin, padded, chunk);
        let mut at = own.first;
        while at < own.end {
            let value = tensor[min(at, length - 1)] * select(i < scaled, factor, 1.0f32);
            whole[place + at] = select(at < length, value, 0.0f32);
            at += CUBE_DIM as usize;
        }
        begin += length.div_ceil(chunk);
        place += padded;
    }
}

/// Tensors of one CUDA device, in f32.
pub struct ManyTensors(Vec<FloatTensor<Cube>>);

impl ManyTensors {
    /// `None` if a tensor is not on a CUDA device, on another one than the first, not f32 or empty.
    pub fn from_tensors<'a>(tensors: impl Iterator<Item = &'a Tensor<1>>) -> Option<Self> {
        let on_cube = |tensor: &Tensor<1>| tensor.clone().try_into_primitive::<Cube>().ok();
        let tensors: Vec<_> = tensors.map(on_cube).collect::<Option<_>>()?;
        on_cuda(&tensors).then_some(Self(tensors))
    }

    /// Sums of squares of parts of the tensors, `[2, parts]`: of the values, and of the values multiplied by `down`.
    pub fn squares(&self, down: f32) -> Tensor<2> {
        let parts = self.0.chunks(MOST).map(|tensors| {
            let lengths = tensors.iter().map(|tensor| tensor.shape().num_elements());
            let shape = Shape::new([2, blocks(lengths) * THREADS]);
            let output = (shape.clone(), DType::F32);
            let run = move |tensors: Vec<CubeTensor>| {
                let sums = empty(&tensors[0], shape.clone());
                let (count, dim) = grid(tensors.iter());
                // SAFETY: every index is below the length of its tensor.
                unsafe {
                    sums_of_squares::launch_unchecked(
                        &tensors[0].client,
                        count,
                        dim,
                        buffers(tensors.iter()),
                        sums.clone().into_buffer_arg(),
                        down,
                        CHUNK,
                    );
                }
                Ok(vec![sums])
            };
            tensor(operation("sums of squares", tensors.to_vec(), &[output], run))
        });
        parts.reduce(|sums, more| Tensor::cat(vec![sums, more], 1)).expect("at least one tensor")
    }

    /// The tensors in one, with zeros between them, which [`split`] leaves out. The first `scaled` ones are multiplied by
    /// `factor`.
    ///
    /// Each launch writes a part of its own, because CubeCL takes memory as written after a launch that succeeds, even if
    /// an earlier one failed to write another part of it.
    pub fn concatenate(self, factor: f32, scaled: usize) -> Tensor<1> {
        let lengths: Vec<_> = self.0.iter().map(|tensor| tensor.shape().num_elements()).collect();
        let length = concatenated_length(&lengths);
        let run = move |tensors: Vec<CubeTensor>| {
            let whole = empty(&tensors[0], Shape::new([length]));
            let mut place = 0;
            for (chunk, tensors) in tensors.chunks(MOST).enumerate() {
                let length = tensors.iter().map(|tensor| padded(elements(tensor))).sum();
                let written = part(&whole.handle, place, length);
                let (count, dim) = grid(tensors.iter());
                place += length;
                // SAFETY: every index is below the length of its tensor, and `written` is as long as all of them.
                unsafe {
                    concatenate_all::launch_unchecked(
                        &whole.client,
                        count,
                        dim,
                        buffers(tensors.iter()),
                        BufferArg::from_raw_parts(written, length),
                        factor,
                        scaled.saturating_sub(chunk * MOST).min(tensors.len()),
                        CHUNK,
                    );
                }
            }
            Ok(vec![whole])
        };
        tensor(operation("concatenate", self.0, &[(Shape::new([length]), DType::F32)], run))
    }

    /// The tensors multiplied by `factor` `[1]`, which is on their device.
    ///
    /// # Panics
    /// If the factor is on another kind of device.
    pub fn scale(self, factor: Tensor<1>) -> Vec<Tensor<1>> {
        let outputs: Vec<_> = self.0.iter().map(|tensor| (tensor.shape(), DType::F32)).collect();
        let mut inputs = self.0;
        inputs.push(factor.try_into_primitive::<Cube>().expect("a factor on the device"));
        let run = |tensors: Vec<CubeTensor>| {
            let Some((factor, tensors)) = tensors.split_last() else { return Ok(Vec::new()) };
            let scaled: Vec<_> = tensors.iter().map(empty_like).collect();
            for (tensors, scaled) in tensors.chunks(MOST).zip(scaled.chunks(MOST)) {
                let (count, dim) = grid(tensors.iter());
                // SAFETY: every index is below the length of its tensor, and outputs are as long as inputs.
                unsafe {
                    scale_all::launch_unchecked(
                        &factor.client,
                        count,
                        dim,
                        buffers(tensors.iter()),
                        buffers(scaled.iter()),
                        factor.clone().into_buffer_arg(),
                        CHUNK,
                    );
                }
            }
            Ok(scaled)
        };
        operation("scale", inputs, &outputs, run).into_iter().map(Tensor::from_primitive::<Cube>).collect()
    }
}

/// Length of the concatenation of tensors of these lengths.
fn concatenated_length(lengths: &[usize]) -> usize {
    lengths.iter().map(|length| padded(*length)).sum()
}

fn padded(length: usize) -> usize {
    length.next_multiple_of(ALIGNMENT)
}

/// The tensors of these lengths of which `whole` is the [concatenation](ManyTensors::concatenate), in its memory.
///
/// `None` if its length is another one, and unless it is on a CUDA device and in f32.
pub fn split(whole: &Tensor<1>, lengths: &[usize]) -> Option<Vec<Tensor<1>>> {
    let whole = whole.clone().try_into_primitive::<Cube>().ok()?;
    let fits = whole.shape().num_elements() == concatenated_length(lengths) && !lengths.contains(&0);
    if !(fits && on_cuda(std::slice::from_ref(&whole))) {
        return None;
    }
    let outputs: Vec<_> = lengths.iter().map(|length| (Shape::new([*length]), DType::F32)).collect();
    let lengths = lengths.to_vec();
    let run = move |tensors: Vec<CubeTensor>| {
        let [whole] = all(tensors)?;
        let mut place = 0;
        let view = |length: &usize| {
            let handle = part(&whole.handle, place, *length);
            place += padded(*length);
            let (client, device) = (whole.client.clone(), whole.device.clone());
            CubeTensor::new_contiguous(client, device, Shape::new([*length]), handle, DType::F32)
        };
        Ok(lengths.iter().map(view).collect())
    };
    let parts = operation("split", vec![whole], &outputs, run).into_iter();
    Some(parts.map(Tensor::from_primitive::<Cube>).collect())
}

/// The result of an operation that has one.
fn tensor<const D: usize>(mut results: Vec<FloatTensor<Cube>>) -> Tensor<D> {
    Tensor::from_primitive::<Cube>(results.swap_remove(0))
}

/// Arguments of a kernel.
pub(super) fn buffers<'a>(tensors: impl Iterator<Item = &'a CubeTensor>) -> SequenceArg<Box<[f32]>> {
    tensors.map(|tensor| tensor.clone().into_buffer_arg()).collect()
}

/// The grid of a launch with a block for each chunk of `tensors`.
pub(super) fn grid<'a>(tensors: impl Iterator<Item = &'a CubeTensor>) -> (CubeCount, CubeDim) {
    (block::blocks(blocks(tensors.map(elements))), block::dim())
}

/// Blocks of threads for tensors of these lengths.
fn blocks(lengths: impl Iterator<Item = usize>) -> usize {
    lengths.map(|length| length.div_ceil(CHUNK)).sum()
}
