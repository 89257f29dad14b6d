//! LSTM over all time steps (Hochreiter and Schmidhuber 1997, with the gates of PyTorch).

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
#[derive(Clone, Copy, Debug)]
pub struct Lstm {
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

/// Parameters, with the gates in the order input, forget, cell candidate, output.
#[derive(Clone, Copy, Debug)]
pub struct Weights<'a> {
    /// Factors of the inputs, `[inputs, 4 × hidden]`.
    pub input: &'a [f32],
    /// Factors of the hidden state, `[hidden, 4 × hidden]`.
    pub hidden: &'a [f32],
    /// Summands, `[4 × hidden]`; empty for none.
    pub bias: &'a [f32],
}

/// Result of [`Lstm::forward`].
#[derive(Clone, Debug)]
pub struct Forward {
    /// Hidden states, `[batch, time, hidden]`, followed by the final cell states, `[batch, hidden]`.
    pub outputs: Vec<f32>,
    /// Values for [`Lstm::backward`].
    pub saved: Saved,
}

/// Activated gates and cell states of all time steps, `[batch, time, 5 × hidden]`.
#[derive(Clone, Debug)]
pub struct Saved(Vec<f32>);

/// Gradients of the inputs of [`Lstm::forward`].
#[derive(Clone, Debug)]
pub struct Gradients {
    /// Gradient of `x`; empty unless wanted.
    pub x: Vec<f32>,
    /// Gradient of [`Weights::input`].
    pub input: Vec<f32>,
    /// Gradient of [`Weights::hidden`].
    pub hidden: Vec<f32>,
    /// Gradient of [`Weights::bias`], also without a bias.
    pub bias: Vec<f32>,
    /// Gradients of the initial hidden and cell states.
    pub state: [Vec<f32>; 2],
}

impl Lstm {
    /// Hidden and final cell states for `x`, `[batch, time, inputs]`.
    ///
    /// `state` is the initial hidden and cell states, `[batch, hidden]`.
    ///
    /// # Panics
    /// If the slices do not have these shapes, or the result does not fit in memory.
    pub fn forward(&self, x: &[f32], weights: Weights, state: [&[f32]; 2]) -> Forward {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let [states_len, saved_len] = self.check(x, weights, state);
        let matrix = Packed::new([inputs + hidden, 4 * hidden], weights.bias, |row, column| {
            let (matrix, row) = match row.checked_sub(inputs) {
                Some(row) => (weights.hidden, row),
                None => (weights.input, row),
            };
            matrix[row * 4 * hidden + column]
        });
        let mut outputs = Vec::with_capacity(states_len + batch * hidden);
        let mut saved = Vec::with_capacity(saved_len);
        let (states, cells) =
            outputs.spare_capacity_mut()[..states_len + batch * hidden].split_at_mut(states_len);
        parallel::write_parts(
            [batch, SEQUENCES],
            [time * hidden, hidden, time * 5 * hidden],
            (states, cells, &mut saved.spare_capacity_mut()[..saved_len]),
            || parts::Workspace::new([inputs + hidden, matrix.stride(), hidden]),
            |workspace, sequences, states, last_cells, saved| {
                let (lstm, matrix) = (*self, &matrix);
                arch().dispatch(parts::Forward {
                    lstm,
                    x,
                    state,
                    matrix,
                    sequences,
                    workspace,
                    states,
                    last_cells,
                    saved,
                });
            },
        );
        // SAFETY: the parts write all values.
        unsafe {
            outputs.set_len(states_len + batch * hidden);
            saved.set_len(saved_len);
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
        state: [&[f32]; 2],
        [outputs, gradient]: [&[f32]; 2],
        saved: &Saved,
        x_wanted: bool,
    ) -> Gradients {
        let Self { batch, time, inputs, hidden, reverse } = *self;
        let [states_len, saved_len] = self.check(x, weights, state);
        let len = states_len + batch * hidden;
        assert_eq!(
            [outputs.len(), gradient.len(), saved.0.len()],
            [len, len, saved_len],
            "lengths of forward"
        );
        let matrix =
            Packed::new([4 * hidden, hidden], &[], |row, column| weights.hidden[column * 4 * hidden + row]);
        let mut gates = Vec::with_capacity(4 * states_len);
        let mut for_state = [(); 2].map(|()| vec![0.0; batch * hidden]);
        let [for_hidden, for_cells] = &mut for_state;
        parallel::write_parts(
            [batch, SEQUENCES],
            [time * 4 * hidden, hidden, hidden],
            (&mut gates.spare_capacity_mut()[..4 * states_len], for_hidden, for_cells),
            || parts::Workspace::new([0, 4 * hidden, matrix.stride()]),
            |workspace, sequences, gates, for_hidden, for_cells| {
                let (lstm, matrix, cells, saved) = (*self, &matrix, state[1], &saved.0);
                arch().dispatch(parts::Backward {
                    lstm,
                    cells,
                    saved,
                    gradient,
                    matrix,
                    sequences,
                    workspace,
                    gates,
                    for_hidden,
                    for_cells,
                });
            },
        );
        // SAFETY: the parts write all values.
        unsafe { gates.set_len(4 * states_len) };
        let rows = joined([x, outputs, state[0]], [batch, time], [inputs, hidden], reverse);
        let (mut input, bias) = linear::gradients(&rows, &gates, [batch * time, inputs + hidden, 4 * hidden]);
        let for_hidden = input.split_off(inputs * 4 * hidden);
        let [left, right] = [&gates, weights.input].map(|matrix| Matrix::rows(matrix, 4 * hidden));
        let x = x_wanted.then(|| product([batch * time, 4 * hidden, inputs], left, right.transpose()));
        Gradients { x: x.unwrap_or_default(), input, hidden: for_hidden, bias, state: for_state }
    }

    /// Numbers of hidden states and of saved values.
    fn check(&self, x: &[f32], weights: Weights, state: [&[f32]; 2]) -> [usize; 2] {
        let Self { batch, time, inputs, hidden, .. } = *self;
        let has =
            |slice: &[f32], shape: &[usize], what| assert_eq!(Some(slice.len()), values(shape), "{what}");
        has(x, &[batch, time, inputs], "x: [batch, time, inputs]");
        has(weights.input, &[inputs, 4, hidden], "weights: [inputs, 4 × hidden]");
        has(weights.hidden, &[hidden, 4, hidden], "weights: [hidden, 4 × hidden]");
        if !weights.bias.is_empty() {
            has(weights.bias, &[4, hidden], "bias: [4 × hidden]");
        }
        has(state[0], &[batch, hidden], "hidden states: [batch, hidden]");
        has(state[1], &[batch, hidden], "cell states: [batch, hidden]");
        [1, 5].map(|times| values(&[batch, time, hidden, times]).expect("values that fit in memory"))
    }
}
