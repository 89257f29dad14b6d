//! Cross-entropy of classes with two launches, and its gradient with one.

use super::{
    block::{THREADS, block_sum, blocks, blocks_for, dim},
    tensors::{elements, empty, exact, kernels, on_cuda, run},
};
use burn::backend::{
    Cube, TensorMetadata,
    tensor::{FloatTensor, IntTensor},
};
use burn::tensor::{DType, Int, Shape, Tensor};
use burn_cubecl::{
    cubecl::{self, prelude::*},
    tensor::CubeTensor,
};

/// Maximum number of classes, which one thread reads one after another.
const MOST_CLASSES: usize = 1024;

/// Computes for each sample the largest logit, the logarithm of the sum of exponentials relative to it, the loss, and
/// whether the first of the largest logits is the target's. Unknown classes have the loss NaN.
///
/// The logits of a sample begin `stride` elements after those of the sample before.
#[cube(launch_unchecked)]
fn sample_losses(
    logits: &[f32],
    stride: usize,
    classes: usize,
    targets: &[i32],
    largest: &mut [f32],
    logarithms: &mut [f32],
    losses: &mut [f32],
    correct: &mut [f32],
    smoothing: f32,
    #[comptime] smooths: bool,
) {
    let sample = ABSOLUTE_POS;
    if sample < targets.len() {
        let first = sample * stride;
        let mut best = first;
        for class in 1..classes {
            if logits[first + class] > logits[best] {
                best = first + class;
            }
        }
        let top = logits[best];
        let mut sum = 0.0f32;
        let mut differences = 0.0f32;
        for class in 0..classes {
            let difference = logits[first + class] - top;
            sum += difference.exp();
            differences += difference;
        }
        let logarithm = sum.ln();
        let target = targets[sample];
        let known = target >= 0 && target < classes as i32;
        let expected = first + select(known, target as usize, 0);
        let mut loss = logarithm - (logits[expected] - top);
        if comptime![smooths] {
            loss = loss * (1.0 - smoothing) + (logarithm - differences / classes as f32) * smoothing;
        }
        largest[sample] = top;
        logarithms[sample] = logarithm;
        losses[sample] = select(known, loss, f32::NAN);
        correct[sample] = select(known && expected == best, 1.0f32, 0.0f32);
    }
}

/// Sums over samples in one block of threads: the mean loss, and `[loss, correct answers]`.
#[cube(launch_unchecked)]
fn batch_sums(
    losses: &[f32],
    correct: &[f32],
    mean: &mut [f32],
    totals: &mut [f32],
    #[comptime] threads: usize,
) {
    let mut sums = Shared::<[f32]>::new_slice(threads);
    let mut loss = 0.0f32;
    let mut right = 0.0f32;
    let mut sample = UNIT_POS as usize;
    while sample < losses.len() {
        loss += losses[sample];
        right += correct[sample];
        sample += threads;
    }
    let loss = block_sum(loss, &mut sums);
    let right = block_sum(right, &mut sums);
    if UNIT_POS == 0 {
        mean[0] = loss / losses.len() as f32;
        totals[0] = loss;
        totals[1] = right;
    }
}

/// Gradient of the mean loss for the logits: softmax minus the target's distribution.
#[cube(launch_unchecked)]
fn logits_gradient(
    logits: &[f32],
    stride: usize,
    classes: usize,
    targets: &[i32],
    largest: &[f32],
    logarithms: &[f32],
    loss_gradient: &[f32],
    gradient: &mut [f32],
    smoothing: f32,
) {
    let at = ABSOLUTE_POS;
    if at < gradient.len() {
        let samples = targets.len();
        let sample = at / classes;
        let class = at - sample * classes;
        let probability = (logits[sample * stride + class] - largest[sample] - logarithms[sample]).exp();
        let hit = select(targets[sample] == class as i32, 1.0 - smoothing, 0.0f32);
        let expected = hit + smoothing / classes as f32;
        gradient[at] = (probability - expected) * loss_gradient[0] / samples as f32;
    }
}

/// Mean loss `[1]`, and `[loss summed over samples, correct answers]` without a graph.
///
/// `logits` are `[batch, classes]`, `targets` `[batch]`. `smoothing` is the label smoothing from 0 to 1. A target that is
/// not a class gives NaN.
///
/// `None` unless the logits are in f32 and the targets in i32, on one CUDA device and not empty, with at most
/// [`MOST_CLASSES`] classes.
pub(crate) fn cross_entropy(
    logits: &Tensor<2>,
    targets: &Tensor<1, Int>,
    smoothing: f32,
) -> Option<(Tensor<1>, Tensor<1>)> {
    let mut totals = None;
    let mean = run([logits.clone().into_dispatch()], |[logits]| {
        let targets = targets.clone().inner().try_into_primitive::<Cube>().ok()?;
        let same_device = logits.client.device() == targets.client.device();
        let fits = targets.dtype() == DType::I32 && logits.shape()[1] <= MOST_CLASSES;
        if !(same_device && fits && on_cuda(std::slice::from_ref(&logits))) {
            return None;
        }
        let [mean, sums, normalizers @ ..] = losses(logits.clone(), targets.clone(), smoothing);
        totals = Some(Tensor::from_primitive::<Cube>(sums));
        Some((mean, move |[]: [_; 0], upstream, _| {
            [Some(gradient(logits, targets, normalizers, upstream, smoothing))]
        }))
    })?;
    Some((mean, totals?))
}

/// Mean loss, totals, and each sample's largest logit and logarithm of the sum of exponentials.
fn losses(logits: FloatTensor<Cube>, targets: IntTensor<Cube>, smoothing: f32) -> [FloatTensor<Cube>; 4] {
    let shapes = [Shape::new([1]), Shape::new([2]), targets.shape(), targets.shape()];
    let run = move |[logits, targets]: [_; 2]| {
        let ((logits, stride, classes), targets) = (rows(logits), exact(targets));
        let [largest, logarithms, losses, correct] = [(); 4].map(|()| empty(&logits, targets.shape()));
        let [mean, totals] = [1, 2].map(|length| empty(&logits, Shape::new([length])));
        let client = &logits.client.clone();
        // SAFETY: every index is below the number of samples, or of logits.
        unsafe {
            sample_losses::launch_unchecked(
                client,
                blocks_for(elements(&targets)),
                dim(),
                logits.into_buffer_arg(),
                stride,
                classes,
                targets.into_buffer_arg(),
                largest.clone().into_buffer_arg(),
                logarithms.clone().into_buffer_arg(),
                losses.clone().into_buffer_arg(),
                correct.clone().into_buffer_arg(),
                smoothing,
                smoothing != 0.0,
            );
            batch_sums::launch_unchecked(
                client,
                blocks(1),
                dim(),
                losses.into_buffer_arg(),
                correct.into_buffer_arg(),
                mean.clone().into_buffer_arg(),
                totals.clone().into_buffer_arg(),
                THREADS,
            );
        }
        Ok([mean, totals, largest, logarithms])
    };
    kernels("cross-entropy", [logits, targets], shapes, run)
}

/// A matrix with contiguous rows, the elements from one row to the next, and those of a row.
///
/// CubeCL aligns the rows of a matrix, so that its kernels' results are often not contiguous.
fn rows(matrix: CubeTensor) -> (CubeTensor, usize, usize) {
    let matrix = if matrix.meta.strides()[1] == 1 { matrix } else { exact(matrix) };
    let (stride, columns) = (matrix.meta.strides()[0], matrix.shape()[1]);
    (matrix, stride, columns)
}

/// Gradient of the logits.
fn gradient(
    logits: FloatTensor<Cube>,
    targets: IntTensor<Cube>,
    [largest, logarithms]: [FloatTensor<Cube>; 2],
    upstream: FloatTensor<Cube>,
    smoothing: f32,
) -> FloatTensor<Cube> {
    let shapes = [logits.shape()];
    let run = move |[logits, tensors @ ..]: [_; 5]| {
        let (logits, stride, classes) = rows(logits);
        let [targets, largest, logarithms, upstream] = tensors.map(exact);
        let gradient = empty(&logits, logits.shape());
        // SAFETY: every index is below the number of logits, or of samples.
        unsafe {
            logits_gradient::launch_unchecked(
                &logits.client.clone(),
                blocks_for(elements(&gradient)),
                dim(),
                logits.into_buffer_arg(),
                stride,
                classes,
                targets.into_buffer_arg(),
                largest.into_buffer_arg(),
                logarithms.into_buffer_arg(),
                upstream.into_buffer_arg(),
                gradient.clone().into_buffer_arg(),
                smoothing,
            );
        }
        Ok([gradient])
    };
    let inputs = [logits, targets, largest, logarithms, upstream];
    let [gradient] = kernels("cross-entropy gradient", inputs, shapes, run);
    gradient
}
