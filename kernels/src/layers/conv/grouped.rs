//! Convolutions of groups of channels.

use super::super::operation::Operation;
use crate::host_tensor::{Host, tensor, values};
use burn::backend::TensorMetadata;

/// An operation of images, weights and bias for each group of channels.
#[derive(Clone, Copy, Debug)]
pub struct Grouped<O> {
    pub each: O,
    pub groups: usize,
}

/// Axes of images, weights and bias that are divided.
const AXES: [usize; 3] = [1, 0, 0];

impl<O: Operation<3, 2>> Operation<3, 2> for Grouped<O> {
    type Saved = Vec<O::Saved>;

    fn forward(&self, inputs: [Host; 3]) -> (Host, Self::Saved) {
        let part = |number| {
            let input = |at: usize| split(&inputs[at], AXES[at], number, self.groups);
            self.each.forward(std::array::from_fn(input))
        };
        let (outputs, saved): (Vec<_>, _) = (0..self.groups).map(part).unzip();
        (join(&outputs, 1), saved)
    }

    fn backward(
        &self,
        read: [Host; 2],
        saved: Self::Saved,
        grad: Host,
        wanted: [bool; 3],
    ) -> [Option<Host>; 3] {
        let part = |(number, saved)| {
            let input = |at: usize| split(&read[at], AXES[at], number, self.groups);
            let grad = split(&grad, 1, number, self.groups);
            self.each.backward(std::array::from_fn(input), saved, grad, wanted)
        };
        let parts: Vec<_> = saved.into_iter().enumerate().map(part).collect();
        std::array::from_fn(|at| {
            let gradients: Option<Vec<_>> = parts.iter().map(|part| part[at].clone()).collect();
            gradients.map(|gradients| join(&gradients, AXES[at]))
        })
    }
}

/// Part `number` of `parts` equal parts of an axis.
fn split(whole: &Host, axis: usize, number: usize, parts: usize) -> Host {
    let mut shape = whole.shape();
    shape[axis] /= parts;
    let len: usize = shape[axis..].iter().product();
    let chunks = values(whole).chunks_exact(len.max(1)).skip(number).step_by(parts);
    let mut part = Vec::with_capacity(shape.num_elements());
    chunks.for_each(|chunk| part.extend_from_slice(chunk));
    tensor(part, shape)
}

/// The tensor of which these are the equal parts of an axis.
fn join(parts: &[Host], axis: usize) -> Host {
    let mut shape = parts[0].shape();
    let len: usize = shape[axis..].iter().product();
    let rows: usize = shape[..axis].iter().product();
    shape[axis] *= parts.len();
    let mut whole = Vec::with_capacity(shape.num_elements());
    for row in 0..rows {
        parts.iter().for_each(|part| whole.extend_from_slice(&values(part)[row * len..][..len]));
    }
    tensor(whole, shape)
}
