//! LSTM over all time steps (Hochreiter and Schmidhuber 1997, with the gates of PyTorch).

use super::{Packed, Recurrent, Sizes, workspace};
use crate::{
    exp::{sigmoid, tanh},
    linear,
    parallel::{self, Room},
    product::Matrix,
    simd::multiversion,
};
use std::ops::Range;

/// An LSTM, with the gates in the order input, forget, cell candidate, output.
///
/// Further inputs are the bias and the initial hidden and cell states. The final cell states, `[batch, hidden]`, follow the
/// hidden states in the outputs.
#[derive(Clone, Copy, Debug)]
pub struct Lstm(pub Sizes);

impl Recurrent for Lstm {
    /// Saves the activated gates and the cell states of all time steps, `[batch, time, 5 × hidden]`.
    fn forward(
        &self,
        [x, for_inputs, for_hidden, bias, first_state, first_cells]: [&[f32]; 6],
    ) -> [Vec<f32>; 2] {
        let (Sizes { batch, time, inputs, hidden, .. }, at_once) = (self.0, self.0.at_once());
        let len = self.0.check(4, [x, for_inputs, for_hidden], &[bias], &[first_state, first_cells]);
        let parts = [(for_inputs, inputs), (for_hidden, hidden)]
            .map(|(factors, rows)| Matrix::new(factors, [rows, 4 * hidden]));
        let matrix = Packed::new(parts, bias);
        let write = |[outputs, saved]: [Room; 2]| {
            let (states, last_cells) = outputs.split_at_mut(len);
            parallel::write_parts(
                [batch, at_once],
                [time * hidden, hidden, time * 5 * hidden],
                (states, last_cells, saved),
                || workspace(at_once, [inputs + hidden, matrix.stride(), hidden]),
                |workspace, sequences, states, last_cells, saved| {
                    let from = [x, first_state, first_cells];
                    let to = [states, last_cells, saved];
                    forward_sequences(self.0, from, &matrix, sequences, workspace, to);
                },
            );
        };
        // SAFETY: the parts write all values.
        unsafe { parallel::written([len + batch * hidden, 5 * len], write) }
    }

    fn backward(
        &self,
        [x, for_inputs, for_hidden, bias, first_state, cells]: [&[f32]; 6],
        [outputs, gradient]: [&[f32]; 2],
        saved: &[f32],
        x_wanted: bool,
    ) -> [Vec<f32>; 6] {
        let (Sizes { batch, time, inputs, hidden, .. }, at_once) = (self.0, self.0.at_once());
        let len = self.0.check(4, [x, for_inputs, for_hidden], &[bias], &[first_state, cells]);
        let all = len + batch * hidden;
        assert_eq!([outputs.len(), gradient.len(), saved.len()], [all, all, 5 * len], "lengths of forward");
        let matrix = Packed::new([Matrix::new(for_hidden, [hidden, 4 * hidden]).transpose()], &[]);
        let [mut state_gradient, mut cells_gradient] = [(); 2].map(|()| vec![0.0; batch * hidden]);
        let write = |[gates]: [Room; 1]| {
            parallel::write_parts(
                [batch, at_once],
                [time * 4 * hidden, hidden, hidden],
                (gates, &mut state_gradient, &mut cells_gradient),
                || workspace(at_once, [0, 4 * hidden, matrix.stride()]),
                |workspace, sequences, gates, for_hidden, for_cells| {
                    let (values, states) = ([cells, saved, gradient], [for_hidden, for_cells]);
                    backward_sequences(self.0, values, &matrix, sequences, workspace, gates, states);
                },
            );
        };
        // SAFETY: the parts write all values.
        let [gates] = unsafe { parallel::written([4 * len], write) };
        let rows = self.0.joined([x, outputs, first_state]);
        let shape = [batch * time, inputs + hidden, 4 * hidden];
        let (mut input_gradient, bias) = linear::gradients(&rows, &gates, shape);
        let hidden_gradient = input_gradient.split_off(inputs * 4 * hidden);
        let x = if x_wanted { self.0.input_gradient(&gates, for_inputs, 4) } else { Vec::new() };
        [x, input_gradient, hidden_gradient, bias, state_gradient, cells_gradient]
    }
}

multiversion!(
    /// Writes hidden states, final cell states and saved values, from `x` and the initial hidden and cell states.
    ///
    /// The matrix has the factors of inputs and hidden states.
    fn forward_sequences<S: Simd>(
        simd: S,
        sizes: Sizes,
        from: [&[f32]; 3],
        matrix: &Packed,
        sequences: Range<usize>,
        workspace: &mut [Vec<f32>; 3],
        to: [Room<'_>; 3],
    ) {
        let Sizes { time, inputs, hidden, .. } = sizes;
        let ([x, first @ ..], [to_states, last_cells, to_saved]) = (from, to);
        // Inputs and hidden state, gates, and cell states of each sequence.
        let [rows, gates, cells] = workspace;
        let (start, count) = (sequences.start, sequences.len());
        let (width, stride) = (inputs + hidden, matrix.stride());
        for at in 0..count {
            let [state, cell] = first.map(|state| &state[(start + at) * hidden..][..hidden]);
            rows[at * width + inputs..][..hidden].copy_from_slice(state);
            cells[at * hidden..][..hidden].copy_from_slice(cell);
        }
        for step in sizes.steps() {
            for at in 0..count {
                let x = &x[((start + at) * time + step) * inputs..][..inputs];
                rows[at * width..][..inputs].copy_from_slice(x);
            }
            matrix.multiply(simd, count, (rows, width), gates);
            for at in 0..count {
                let gates = &mut gates[at * stride..][..4 * hidden];
                let cells = &mut cells[at * hidden..][..hidden];
                let state = &mut rows[at * width + inputs..][..hidden];
                forward_step(gates, cells, state);
                let row = at * time + step;
                to_states[row * hidden..][..hidden].write_copy_of_slice(state);
                let saved = &mut to_saved[row * 5 * hidden..][..5 * hidden];
                saved[..4 * hidden].write_copy_of_slice(gates);
                saved[4 * hidden..].write_copy_of_slice(cells);
            }
        }
        last_cells.write_copy_of_slice(&cells[..count * hidden]);
    }
);

/// Activates the gates and updates the state of a sequence.
#[inline(always)]
fn forward_step(gates: &mut [f32], cells: &mut [f32], state: &mut [f32]) {
    let hidden = cells.len();
    for (number, gates) in gates.chunks_exact_mut(hidden.max(1)).enumerate() {
        // Loops, because closures of iterators are not compiled for the processor's vectors.
        for gate in gates {
            *gate = if number == 2 { tanh(*gate) } else { sigmoid(*gate) };
        }
    }
    let [input, forget, candidate, output] = [0, 1, 2, 3].map(|gate| &gates[gate * hidden..][..hidden]);
    for (((cell, forget), input), candidate) in cells.iter_mut().zip(forget).zip(input).zip(candidate) {
        *cell = forget * *cell + input * candidate;
    }
    for ((state, cell), output) in state.iter_mut().zip(cells).zip(output) {
        *state = output * tanh(*cell);
    }
}

multiversion!(
    /// Writes gradients of the gates before activation and of the initial hidden and cell states, from the initial cell
    /// states, the saved values and the gradient of the outputs.
    ///
    /// The matrix has the transposed factors of the hidden states.
    fn backward_sequences<S: Simd>(
        simd: S,
        sizes: Sizes,
        values: [&[f32]; 3],
        matrix: &Packed,
        sequences: Range<usize>,
        workspace: &mut [Vec<f32>; 3],
        to_gates: Room<'_>,
        to_states: [&mut [f32]; 2],
    ) {
        let Sizes { batch, time, hidden, .. } = sizes;
        let ([first_cells, saved, gradient], [for_hidden, for_cells]) = (values, to_states);
        // Gradients of the gates and of the hidden states.
        let [_, gates, states] = workspace;
        let (start, count, stride) = (sequences.start, sequences.len(), matrix.stride());
        states.fill(0.0);
        let last_cells = &gradient[(batch * time + start) * hidden..];
        for_cells.copy_from_slice(&last_cells[..count * hidden]);
        for step in sizes.steps().rev() {
            for at in 0..count {
                let sequence = start + at;
                let saved = |step| &saved[(sequence * time + step) * 5 * hidden..][..5 * hidden];
                let before = match sizes.previous(step) {
                    Some(step) => &saved(step)[4 * hidden..],
                    None => &first_cells[sequence * hidden..][..hidden],
                };
                let states = &mut states[at * stride..][..hidden];
                let from = &gradient[(sequence * time + step) * hidden..];
                for (state, from) in states.iter_mut().zip(from) {
                    *state += from;
                }
                let gates = &mut gates[at * 4 * hidden..][..4 * hidden];
                backward_step(saved(step), before, states, &mut for_cells[at * hidden..][..hidden], gates);
                to_gates[(at * time + step) * 4 * hidden..][..4 * hidden].write_copy_of_slice(gates);
            }
            matrix.multiply(simd, count, (gates, 4 * hidden), states);
        }
        for at in 0..count {
            for_hidden[at * hidden..][..hidden].copy_from_slice(&states[at * stride..][..hidden]);
        }
    }
);

/// Gradients of gates and of the cell states `before` a step, from those of its hidden and cell states.
#[inline(always)]
fn backward_step(saved: &[f32], before: &[f32], states: &[f32], cells: &mut [f32], gates: &mut [f32]) {
    let hidden = cells.len();
    let [input, forget, candidate, output, after] =
        [0, 1, 2, 3, 4].map(|part| &saved[part * hidden..][..hidden]);
    let (for_input, rest) = gates.split_at_mut(hidden);
    let (for_forget, rest) = rest.split_at_mut(hidden);
    let (for_candidate, for_output) = rest.split_at_mut(hidden);
    // One or two results per loop, so that the compiler can prove or check that they do not overlap, and vectorises.
    for (tanh_after, after) in for_output.iter_mut().zip(after) {
        *tanh_after = tanh(*after);
    }
    for (((for_output, cell), state), output) in
        for_output.iter_mut().zip(&mut *cells).zip(states).zip(output)
    {
        let tanh = *for_output;
        *cell += state * output * (1.0 - tanh * tanh);
        *for_output = state * tanh * output * (1.0 - output);
    }
    for (((for_input, cell), candidate), input) in for_input.iter_mut().zip(&*cells).zip(candidate).zip(input)
    {
        *for_input = cell * candidate * input * (1.0 - input);
    }
    for (((for_candidate, cell), candidate), input) in
        for_candidate.iter_mut().zip(&*cells).zip(candidate).zip(input)
    {
        *for_candidate = cell * input * (1.0 - candidate * candidate);
    }
    for (((for_forget, cell), before), forget) in for_forget.iter_mut().zip(cells).zip(before).zip(forget) {
        *for_forget = *cell * before * forget * (1.0 - forget);
        *cell *= forget;
    }
}
