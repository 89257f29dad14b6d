//! LSTM and GRU over all time steps.

mod gru;
mod lstm;
mod packed;
#[cfg(test)]
mod tests;

pub use gru::Gru;
pub use lstm::Lstm;

use crate::{
    parallel::values,
    product::{Matrix, product},
};
use packed::Packed;
use std::fmt::Debug;

/// Least and most sequences per part of the work.
const FEW: usize = 8;
const MANY: usize = 32;

/// Sizes of a recurrent layer and direction of the recurrence.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// Sequences.
    pub batch: usize,
    /// Time steps of a sequence.
    pub time: usize,
    /// Inputs of a time step.
    pub inputs: usize,
    /// Hidden units.
    pub hidden: usize,
    /// Whether the recurrence starts at the last time step.
    pub reverse: bool,
}

/// A recurrent layer over all time steps.
///
/// The first of its six inputs are `x`, `[batch, time, inputs]`, the factors of the inputs, `[inputs, gates × hidden]`, and
/// those of the hidden state, `[hidden, gates × hidden]`. Biases are `[gates × hidden]`, or empty for none, and initial
/// states `[batch, hidden]`.
pub trait Recurrent: Copy + Debug + Send + Sync + 'static {
    /// Outputs, which begin with the hidden states, `[batch, time, hidden]`, and values for [`backward`](Self::backward).
    ///
    /// # Panics
    /// If the inputs do not have their shapes, or the result does not fit in memory.
    fn forward(&self, inputs: [&[f32]; 6]) -> [Vec<f32>; 2];

    /// Gradients of the inputs, from the outputs and their gradient.
    ///
    /// That of `x` is empty unless wanted. Those of biases are computed also without a bias.
    ///
    /// # Panics
    /// If the slices do not have the lengths of [`forward`](Self::forward).
    fn backward(
        &self,
        inputs: [&[f32]; 6],
        outputs: [&[f32]; 2],
        saved: &[f32],
        x_wanted: bool,
    ) -> [Vec<f32>; 6];
}

impl Sizes {
    /// Checks the inputs of a layer and returns the number of its hidden states.
    ///
    /// `gates + 1` values are saved for each of them.
    fn check(
        &self,
        gates: usize,
        [x, input, hidden]: [&[f32]; 3],
        biases: &[&[f32]],
        states: &[&[f32]],
    ) -> usize {
        let Self { batch, time, inputs, hidden: units, .. } = *self;
        let has =
            |slice: &[f32], shape: &[usize], what| assert_eq!(Some(slice.len()), values(shape), "{what}");
        has(x, &[batch, time, inputs], "x: [batch, time, inputs]");
        has(input, &[inputs, gates, units], "weights: [inputs, gates × hidden]");
        has(hidden, &[units, gates, units], "weights: [hidden, gates × hidden]");
        for bias in biases.iter().filter(|bias| !bias.is_empty()) {
            has(bias, &[gates, units], "bias: [gates × hidden]");
        }
        for state in states {
            has(state, &[batch, units], "initial states: [batch, hidden]");
        }
        values(&[batch, time, units, gates + 1]).expect("values that fit in memory") / (gates + 1)
    }

    /// Sequences per part of the work: each part reads all factors in every time step. Results do not depend on it, because
    /// no sum is over sequences.
    fn at_once(&self) -> usize {
        self.batch.div_ceil(rayon::current_num_threads()).next_multiple_of(FEW).clamp(FEW, MANY)
    }

    /// Time steps in the order of the recurrence.
    fn steps(&self) -> impl DoubleEndedIterator<Item = usize> + use<> {
        let Self { time, reverse, .. } = *self;
        (0..time).map(move |step| if reverse { time - 1 - step } else { step })
    }

    /// Time step before `step` in the order of the recurrence; `None` before the first.
    #[inline(always)]
    fn previous(&self, step: usize) -> Option<usize> {
        if self.reverse { Some(step + 1).filter(|step| *step < self.time) } else { step.checked_sub(1) }
    }

    /// Gradient of `x`, from that of its products with the `weights`, `[batch, time, gates × hidden]`.
    fn input_gradient(&self, products: &[f32], weights: &[f32], gates: usize) -> Vec<f32> {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let products = Matrix::new(products, [batch * time, gates * hidden]);
        product(products, Matrix::new(weights, [inputs, gates * hidden]).transpose())
    }

    /// Rows of a step, `[x | state]`: inputs and the hidden state before the step, `[batch × time, inputs + hidden]`.
    fn joined(&self, [x, states, initial]: [&[f32]; 3]) -> Vec<f32> {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let mut rows = Vec::with_capacity(batch * time * (inputs + hidden));
        for sequence in 0..batch {
            for step in 0..time {
                rows.extend_from_slice(&x[(sequence * time + step) * inputs..][..inputs]);
                rows.extend_from_slice(match self.previous(step) {
                    Some(step) => &states[(sequence * time + step) * hidden..][..hidden],
                    None => &initial[sequence * hidden..][..hidden],
                });
            }
        }
        rows
    }
}

/// Room of a thread: rows of three lengths for each sequence of a part.
fn workspace(sequences: usize, lens: [usize; 3]) -> [Vec<f32>; 3] {
    lens.map(|len| vec![0.0; sequences * len])
}
