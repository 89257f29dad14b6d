//! GRU over all time steps (Cho et al. 2014, arXiv 1406.1078, with the reset gate of PyTorch).

mod parts;
#[cfg(test)]
mod tests;

use crate::{
    linear::{self, Matrix, product},
    parallel::{self, values},
    recurrent::{Packed, SEQUENCES, joined},
    simd::arch,
};

/// Sizes of the layer and direction of the recurrence.
///
/// The reset gate r is a factor of the product with the hidden state: n = tanh(Wx + b + r (Uh + c)).
#[derive(Clone, Copy, Debug)]
pub struct Gru {
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

/// Parameters, with the gates in the order reset, update, candidate.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Factors of the inputs, `[inputs, 3 × hidden]`.
    pub input: &'a [f32],
    /// Factors of the hidden state, `[hidden, 3 × hidden]`.
    pub hidden: &'a [f32],
    /// Summands of both products, `[3 × hidden]`; empty for none.
    pub biases: [&'a [f32]; 2],
}

/// Result of [`Gru::forward`].
#[derive(Clone, Debug)]
pub struct Forward {
    /// Hidden states, `[batch, time, hidden]`.
    pub outputs: Vec<f32>,
    /// Values for [`Gru::backward`].
    pub saved: Saved,
}

/// Activated gates and the product that r multiplies, of all time steps, `[batch, time, 4 × hidden]`.
#[derive(Clone, Debug)]
pub struct Saved(Vec<f32>);

/// Gradients of the inputs of [`Gru::forward`].
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of `x`; empty unless wanted.
    pub x: Vec<f32>,
    /// Gradient of [`Weights::input`].
    pub input: Vec<f32>,
    /// Gradient of [`Weights::hidden`].
    pub hidden: Vec<f32>,
    /// Gradients of [`Weights::biases`], also without biases.
    pub biases: [Vec<f32>; 2],
    /// Gradient of the initial hidden states.
    pub state: Vec<f32>,
}

impl Gru {
    /// Hidden states for `x`, `[batch, time, inputs]`, and the initial hidden states, `[batch, hidden]`.
    ///
    /// # Panics
    /// If the slices do not have these shapes, or the result does not fit in memory.
    pub fn forward(&self, x: &[f32], weights: Weights, state: &[f32]) -> Forward {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let len = self.check(x, weights, state);
        let matrices =
            [(weights.input, inputs, 0), (weights.hidden, hidden, 1)].map(|(matrix, rows, bias)| {
                Packed::new([rows, 3 * hidden], weights.biases[bias], |row, column| {
                    matrix[row * 3 * hidden + column]
                })
            });
        let (mut outputs, mut saved) = (Vec::with_capacity(len), Vec::with_capacity(4 * len));
        parallel::write_parts(
            [batch, SEQUENCES],
            [time * hidden, time * 4 * hidden, 0],
            (
                &mut outputs.spare_capacity_mut()[..len],
                &mut saved.spare_capacity_mut()[..4 * len],
                &mut [(); 0],
            ),
            || parts::Workspace::new([hidden, matrices[0].stride(), matrices[1].stride()]),
            |workspace, sequences, outputs, saved, _| {
                let (gru, matrices) = (*self, &matrices);
                arch().dispatch(parts::Forward {
                    gru,
                    x,
                    state,
                    matrices,
                    sequences,
                    workspace,
                    outputs,
                    saved,
                });
            },
        );
        // SAFETY: the parts write all values.
        unsafe {
            outputs.set_len(len);
            saved.set_len(4 * len);
        }
        Forward { outputs, saved: Saved(saved) }
    }

    /// Gradients from that of the outputs, with which the outputs are passed.
    ///
    /// # Panics
    /// If the slices do not have the lengths of [`forward`](Self::forward).
    pub fn backward(
        &self,
        x: &[f32],
        weights: Weights,
        state: &[f32],
        [outputs, gradient]: [&[f32]; 2],
        saved: &Saved,
        x_wanted: bool,
    ) -> Gradients {
        let Self { batch, time, inputs, hidden, reverse } = *self;
        let len = self.check(x, weights, state);
        assert_eq!([outputs.len(), gradient.len(), saved.0.len()], [len, len, 4 * len], "lengths of forward");
        let matrix =
            Packed::new([3 * hidden, hidden], &[], |row, column| weights.hidden[column * 3 * hidden + row]);
        let mut sums = [(); 2].map(|()| Vec::with_capacity(3 * len));
        let [for_input, for_hidden] = sums.each_mut().map(|sums| &mut sums.spare_capacity_mut()[..3 * len]);
        let mut for_state = vec![0.0; batch * hidden];
        parallel::write_parts(
            [batch, SEQUENCES],
            [time * 3 * hidden, time * 3 * hidden, hidden],
            (for_input, for_hidden, &mut for_state),
            || parts::Workspace::new([3 * hidden, 3 * hidden, matrix.stride()]),
            |workspace, sequences, for_input, for_hidden, for_state| {
                let (gru, matrix, values) = (*self, &matrix, [state, outputs, &saved.0, gradient]);
                arch().dispatch(parts::Backward {
                    gru,
                    values,
                    matrix,
                    sequences,
                    workspace,
                    for_input,
                    for_hidden,
                    for_state,
                });
            },
        );
        // SAFETY: the parts write all values.
        unsafe { sums.iter_mut().for_each(|sums| sums.set_len(3 * len)) };
        let [for_input, for_hidden] = sums;
        let rows = batch * time;
        let states = joined([&[], outputs, state], [batch, time], [0, hidden], reverse);
        let (input, input_bias) = linear::gradients(x, &for_input, [rows, inputs, 3 * hidden]);
        let (hidden_weights, hidden_bias) =
            linear::gradients(&states, &for_hidden, [rows, hidden, 3 * hidden]);
        let [left, right] = [&for_input, weights.input].map(|matrix| Matrix::rows(matrix, 3 * hidden));
        let x = x_wanted.then(|| product([rows, 3 * hidden, inputs], left, right.transpose()));
        Gradients {
            x: x.unwrap_or_default(),
            input,
            hidden: hidden_weights,
            biases: [input_bias, hidden_bias],
            state: for_state,
        }
    }

    /// Number of hidden states.
    fn check(&self, x: &[f32], weights: Weights, state: &[f32]) -> usize {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let has =
            |slice: &[f32], shape: &[usize], what| assert_eq!(Some(slice.len()), values(shape), "{what}");
        has(x, &[batch, time, inputs], "x: [batch, time, inputs]");
        has(weights.input, &[inputs, 3, hidden], "weights: [inputs, 3 × hidden]");
        has(weights.hidden, &[hidden, 3, hidden], "weights: [hidden, 3 × hidden]");
        for bias in weights.biases.into_iter().filter(|bias| !bias.is_empty()) {
            has(bias, &[3, hidden], "bias: [3 × hidden]");
        }
        has(state, &[batch, hidden], "hidden states: [batch, hidden]");
        values(&[batch, time, hidden, 4]).expect("values that fit in memory") / 4
    }
}
