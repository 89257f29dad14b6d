//! Sums over samples, and how a step's come from the device.

use crate::{Error, metric::StepOutput};
use burn::tensor::{Element, Tensor};

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

/// Adds what a step says about its samples, if it has any.
pub(super) fn add_output(to: &mut Vec<f32>, output: &impl StepOutput, samples: usize) -> Result<(), Error> {
    let mut totals = read::<f32>(output.totals())?;
    if samples == 0 {
        totals.fill(0.0);
    }
    to.resize(totals.len(), 0.0);
    to.iter_mut().zip(totals).for_each(|(to, from)| *to += from);
    Ok(())
}

/// The values of a small tensor, on the host.
pub(super) fn read<E: Element>(tensor: Tensor<1>) -> Result<Vec<E>, Error> {
    let broken =
        |reason: String| Error::Io { what: "reading a step's totals from the device".into(), reason };
    let data = tensor.try_into_data().map_err(|e| broken(e.to_string()))?;
    data.convert::<E>().try_into_vec().map_err(|e| broken(format!("{e:?}")))
}
