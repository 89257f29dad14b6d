//! Sums over samples.

use crate::{metric::StepOutput, wrapper::engine::masked};
use burn::tensor::Tensor;

/// Sums over the samples of an evaluation.
#[derive(Default)]
pub(super) struct Totals {
    pub sums: Vec<f64>,
    pub samples: usize,
}

impl Totals {
    pub fn add(&mut self, sums: &[f64], samples: usize) {
        add(&mut self.sums, sums);
        self.samples += samples;
    }
}

/// `to` plus `from`, element by element; `to` may still be empty.
pub(super) fn add(to: &mut Vec<f64>, from: &[f64]) {
    to.resize(from.len(), 0.0);
    to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
}

/// The sums over the samples of a step's output, on its device.
pub(super) fn totals_of(output: &impl StepOutput, samples: usize) -> Tensor<1> {
    masked(output.totals().inner(), samples)
}
