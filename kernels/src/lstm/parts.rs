//! All time steps of some sequences.

use crate::{
    exp::{sigmoid, tanh},
    parallel::Room,
    recurrent::{Packed, Sizes},
    simd::multiversion,
};
use std::ops::Range;

multiversion!(
    /// Writes hidden states, final cell states and saved values, from `x` and the initial hidden and cell states.
    ///
    /// The matrix has the factors of inputs and hidden states.
    pub fn forward<S: Simd>(
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
    gates[..2 * hidden].iter_mut().for_each(|gate| *gate = sigmoid(*gate));
    gates[2 * hidden..3 * hidden].iter_mut().for_each(|gate| *gate = tanh(*gate));
    gates[3 * hidden..].iter_mut().for_each(|gate| *gate = sigmoid(*gate));
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
    pub fn backward<S: Simd>(
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
                states.iter_mut().zip(from).for_each(|(state, from)| *state += from);
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
