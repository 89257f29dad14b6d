//! GRU over all time steps (Cho et al. 2014, arXiv 1406.1078, with the reset gate of PyTorch).

use super::{Packed, Recurrent, Sizes, workspace};
use crate::{
    exp::{sigmoid, tanh},
    linear,
    parallel::{self, Room},
    product::Matrix,
    simd::multiversion,
};
use std::ops::Range;

/// A GRU, with the gates in the order reset, update, candidate.
///
/// The reset gate r is a factor of the product with the hidden state: n = tanh(Wx + b + r (Uh + c)). Further inputs are the
/// biases b and c of both products and the initial hidden states.
#[derive(Clone, Copy, Debug)]
pub struct Gru(pub Sizes);

impl Recurrent for Gru {
    /// Saves the activated gates and the product that r multiplies, of all time steps, `[batch, time, 4 × hidden]`.
    fn forward(
        &self,
        [x, for_inputs, for_hidden, input_bias, hidden_bias, state]: [&[f32]; 6],
    ) -> [Vec<f32>; 2] {
        let (Sizes { batch, time, inputs, hidden, .. }, at_once) = (self.0, self.0.at_once());
        self.0.check(3, [x, for_inputs, for_hidden], &[input_bias, hidden_bias], &[state]);
        let matrices = [(for_inputs, inputs, input_bias), (for_hidden, hidden, hidden_bias)]
            .map(|(factors, rows, bias)| Packed::new([Matrix::new(factors, [rows, 3 * hidden])], bias));
        let (rows, lens) = ([batch, at_once], [time * hidden, time * 4 * hidden, 0]);
        let new = || workspace(at_once, [hidden, matrices[0].stride(), matrices[1].stride()]);
        let write = |workspace: &mut _, sequences, outputs: Room, saved: Room, _: Room<()>| {
            forward_sequences(self.0, [x, state], &matrices, sequences, workspace, [outputs, saved]);
        };
        // SAFETY: the parts write all values.
        let (outputs, saved, _) = unsafe { parallel::build_three(rows, lens, new, write) };
        [outputs, saved]
    }

    fn backward(
        &self,
        [x, for_inputs, for_hidden, input_bias, hidden_bias, state]: [&[f32]; 6],
        [outputs, gradient]: [&[f32]; 2],
        saved: &[f32],
        x_wanted: bool,
    ) -> [Vec<f32>; 6] {
        let (Sizes { batch, time, inputs, hidden, .. }, at_once) = (self.0, self.0.at_once());
        let len = self.0.check(3, [x, for_inputs, for_hidden], &[input_bias, hidden_bias], &[state]);
        assert_eq!([outputs.len(), gradient.len(), saved.len()], [len, len, 4 * len], "lengths of forward");
        let matrix = Packed::new([Matrix::new(for_hidden, [hidden, 3 * hidden]).transpose()], &[]);
        let values = [state, outputs, saved, gradient];
        let mut state_gradient = vec![0.0; batch * hidden];
        let write = |[from_input, from_hidden]: [Room; 2]| {
            parallel::write_parts(
                [batch, at_once],
                [time * 3 * hidden, time * 3 * hidden, hidden],
                (from_input, from_hidden, &mut state_gradient),
                || workspace(at_once, [3 * hidden, 3 * hidden, matrix.stride()]),
                |workspace, sequences, for_input, for_hidden, state| {
                    let to = [for_input, for_hidden];
                    backward_sequences(self.0, values, &matrix, sequences, workspace, to, state);
                },
            );
        };
        // SAFETY: the parts write all values.
        let [from_input, from_hidden] = unsafe { parallel::written([3 * len; 2], write) };
        let rows = batch * time;
        let states = Sizes { inputs: 0, ..self.0 }.joined([&[], outputs, state]);
        let (input_gradient, input_bias) = linear::gradients(x, &from_input, [rows, inputs, 3 * hidden]);
        let (hidden_gradient, hidden_bias) =
            linear::gradients(&states, &from_hidden, [rows, hidden, 3 * hidden]);
        let x = if x_wanted { self.0.input_gradient(&from_input, for_inputs, 3) } else { Vec::new() };
        [x, input_gradient, hidden_gradient, input_bias, hidden_bias, state_gradient]
    }
}

multiversion!(
    /// Writes hidden states and saved values, from `x` and the initial hidden states.
    ///
    /// The matrices are the factors of inputs and hidden states.
    fn forward_sequences<S: Simd>(
        simd: S,
        sizes: Sizes,
        from: [&[f32]; 2],
        matrices: &[Packed; 2],
        sequences: Range<usize>,
        workspace: &mut [Vec<f32>; 3],
        to: [Room<'_>; 2],
    ) {
        let Sizes { time, inputs, hidden, .. } = sizes;
        let ([x, first], [to_states, to_saved]) = (from, to);
        // Hidden states, and the products with inputs and hidden states.
        let [states, from_input, from_hidden] = workspace;
        let (start, count, stride) = (sequences.start, sequences.len(), matrices[0].stride());
        states[..count * hidden].copy_from_slice(&first[start * hidden..][..count * hidden]);
        for step in sizes.steps() {
            let x = &x[(start * time + step) * inputs..];
            matrices[0].multiply(simd, count, (x, time * inputs), from_input);
            matrices[1].multiply(simd, count, (states, hidden), from_hidden);
            for at in 0..count {
                let gates = &mut from_input[at * stride..][..3 * hidden];
                let from_hidden = &from_hidden[at * stride..][..3 * hidden];
                let state = &mut states[at * hidden..][..hidden];
                forward_step(gates, from_hidden, state);
                let row = at * time + step;
                to_states[row * hidden..][..hidden].write_copy_of_slice(state);
                let saved = &mut to_saved[row * 4 * hidden..][..4 * hidden];
                saved[..3 * hidden].write_copy_of_slice(gates);
                saved[3 * hidden..].write_copy_of_slice(&from_hidden[2 * hidden..]);
            }
        }
    }
);

/// Activates the gates, which are products with the inputs before, and updates the state of a sequence.
#[inline(always)]
fn forward_step(gates: &mut [f32], from_hidden: &[f32], state: &mut [f32]) {
    let hidden = state.len();
    let (first, candidate) = gates.split_at_mut(2 * hidden);
    for (gate, from_hidden) in first.iter_mut().zip(from_hidden) {
        *gate = sigmoid(*gate + from_hidden);
    }
    let (reset, update) = (&first[..hidden], &first[hidden..]);
    for ((gate, from_hidden), reset) in candidate.iter_mut().zip(&from_hidden[2 * hidden..]).zip(reset) {
        *gate = tanh(*gate + reset * from_hidden);
    }
    for ((state, candidate), update) in state.iter_mut().zip(candidate).zip(update) {
        *state = (1.0 - update) * *candidate + update * *state;
    }
}

multiversion!(
    /// Writes gradients of the products with inputs and hidden states, and adds those of the initial hidden states to
    /// `state`, from the initial hidden states, the outputs, the saved values and the gradient of the outputs.
    ///
    /// The matrix has the transposed factors of the hidden states.
    fn backward_sequences<S: Simd>(
        simd: S,
        sizes: Sizes,
        values: [&[f32]; 4],
        matrix: &Packed,
        sequences: Range<usize>,
        workspace: &mut [Vec<f32>; 3],
        to: [Room<'_>; 2],
        state: &mut [f32],
    ) {
        let Sizes { time, hidden, .. } = sizes;
        let [initial, outputs, saved, gradient] = values;
        let [to_input, to_hidden] = to;
        // Gradients of the products with hidden states and inputs, and of the hidden states.
        let [for_hidden, for_input, through] = workspace;
        let (start, count, stride) = (sequences.start, sequences.len(), matrix.stride());
        for step in sizes.steps().rev() {
            for at in 0..count {
                let sequence = start + at;
                let before = match sizes.previous(step) {
                    Some(step) => &outputs[(sequence * time + step) * hidden..],
                    None => &initial[sequence * hidden..],
                };
                let row = sequence * time + step;
                let state = &mut state[at * hidden..][..hidden];
                for (state, from) in state.iter_mut().zip(&gradient[row * hidden..]) {
                    *state += from;
                }
                let for_input = &mut for_input[at * 3 * hidden..][..3 * hidden];
                let for_hidden = &mut for_hidden[at * 3 * hidden..][..3 * hidden];
                backward_step(&saved[row * 4 * hidden..], before, state, for_input, for_hidden);
                let row = (at * time + step) * 3 * hidden;
                to_input[row..][..3 * hidden].write_copy_of_slice(for_input);
                to_hidden[row..][..3 * hidden].write_copy_of_slice(for_hidden);
            }
            matrix.multiply(simd, count, (for_hidden, 3 * hidden), through);
            for (state, through) in state.chunks_exact_mut(hidden.max(1)).zip(through.chunks(stride.max(1))) {
                for (state, through) in state.iter_mut().zip(through) {
                    *state += through;
                }
            }
        }
    }
);

/// Gradients of both products of a step, and part of that of the state `before` it, in place of that after it.
#[inline(always)]
fn backward_step(
    saved: &[f32],
    before: &[f32],
    state: &mut [f32],
    for_input: &mut [f32],
    for_hidden: &mut [f32],
) {
    let hidden = state.len();
    let [reset, update, candidate, product] = [0, 1, 2, 3].map(|part| &saved[part * hidden..][..hidden]);
    let (for_gates, for_candidate) = for_input.split_at_mut(2 * hidden);
    let (for_reset, for_update) = for_gates.split_at_mut(hidden);
    // One or two results per loop, so that the compiler can prove or check that they do not overlap, and vectorises.
    for (((for_candidate, state), update), candidate) in
        for_candidate.iter_mut().zip(&*state).zip(update).zip(candidate)
    {
        *for_candidate = state * (1.0 - update) * (1.0 - candidate * candidate);
    }
    for ((((for_update, state), before), candidate), update) in
        for_update.iter_mut().zip(&*state).zip(before).zip(candidate).zip(update)
    {
        *for_update = state * (before - candidate) * update * (1.0 - update);
    }
    for (((for_reset, for_candidate), product), reset) in
        for_reset.iter_mut().zip(&*for_candidate).zip(product).zip(reset)
    {
        *for_reset = for_candidate * product * reset * (1.0 - reset);
    }
    for ((for_product, for_candidate), reset) in
        for_hidden[2 * hidden..].iter_mut().zip(&*for_candidate).zip(reset)
    {
        *for_product = for_candidate * reset;
    }
    for_hidden[..2 * hidden].copy_from_slice(for_gates);
    for (state, update) in state.iter_mut().zip(update) {
        *state *= update;
    }
}
