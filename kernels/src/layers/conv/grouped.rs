//! Convolutions of groups of channels.

use super::super::operation::Operation;
use crate::host_tensor::{Host, part};
use burn::backend::{Flex, TensorMetadata, ops::FloatTensorOps};

/// An operation of images, weights and bias for each group of channels.
#[derive(Clone, Copy, Debug)]
pub struct Grouped<O> {
    pub each: O,
    pub groups: usize,
}

/// Axes of images, weights and bias that are divided.
const AXES: [usize; 3] = [1, 0, 0];

impl<O> Grouped<O> {
    /// The part of a group along an axis.
    fn group(&self, whole: &Host, axis: usize, number: usize) -> Host {
        let len = whole.shape()[axis] / self.groups;
        part(whole, axis, number * len..(number + 1) * len)
    }
}

impl<O: Operation<3, 2>> Operation<3, 2> for Grouped<O> {
    type Saved = Vec<O::Saved>;

    fn forward(&self, inputs: [Host; 3]) -> (Host, Self::Saved) {
        let part =
            |number| self.each.forward(std::array::from_fn(|at| self.group(&inputs[at], AXES[at], number)));
        let (outputs, saved): (Vec<_>, _) = (0..self.groups).map(part).unzip();
        (Flex::float_cat(outputs, 1), saved)
    }

    fn backward(
        &self,
        read: [Host; 2],
        saved: Self::Saved,
        grad: Host,
        wanted: [bool; 3],
    ) -> [Option<Host>; 3] {
        let part = |(number, saved)| {
            let read = std::array::from_fn(|at| self.group(&read[at], AXES[at], number));
            self.each.backward(read, saved, self.group(&grad, 1, number), wanted)
        };
        let parts: Vec<_> = saved.into_iter().enumerate().map(part).collect();
        std::array::from_fn(|at| {
            let gradients: Option<Vec<_>> = parts.iter().map(|part| part[at].clone()).collect();
            gradients.map(|gradients| Flex::float_cat(gradients, AXES[at]))
        })
    }
}
