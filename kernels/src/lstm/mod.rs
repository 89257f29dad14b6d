//! LSTM over all time steps (Hochreiter and Schmidhuber 1997, with the gates of PyTorch).

mod parts;

use crate::{
    linear,
    parallel::{self, Room},
    product::{Matrix, product},
    recurrent::{Packed, Recurrent, SEQUENCES, Sizes, workspace},
};

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
        let Sizes { batch, time, inputs, hidden, .. } = self.0;
        let len = self.0.check(4, [x, for_inputs, for_hidden], &[bias], &[first_state, first_cells]);
        let matrix = Packed::new([inputs + hidden, 4 * hidden], bias, |row, column| {
            let (matrix, row) = match row.checked_sub(inputs) {
                Some(row) => (for_hidden, row),
                None => (for_inputs, row),
            };
            matrix[row * 4 * hidden + column]
        });
        let write = |[outputs, saved]: [Room; 2]| {
            let (states, last_cells) = outputs.split_at_mut(len);
            parallel::write_parts(
                [batch, SEQUENCES],
                [time * hidden, hidden, time * 5 * hidden],
                (states, last_cells, saved),
                || workspace([inputs + hidden, matrix.stride(), hidden]),
                |workspace, sequences, states, last_cells, saved| {
                    let from = [x, first_state, first_cells];
                    let to = [states, last_cells, saved];
                    parts::forward(self.0, from, &matrix, sequences, workspace, to);
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
        let Sizes { batch, time, inputs, hidden, .. } = self.0;
        let len = self.0.check(4, [x, for_inputs, for_hidden], &[bias], &[first_state, cells]);
        let all = len + batch * hidden;
        assert_eq!([outputs.len(), gradient.len(), saved.len()], [all, all, 5 * len], "lengths of forward");
        let matrix =
            Packed::new([4 * hidden, hidden], &[], |row, column| for_hidden[column * 4 * hidden + row]);
        let [mut state_gradient, mut cells_gradient] = [(); 2].map(|()| vec![0.0; batch * hidden]);
        let write = |[gates]: [Room; 1]| {
            parallel::write_parts(
                [batch, SEQUENCES],
                [time * 4 * hidden, hidden, hidden],
                (gates, &mut state_gradient, &mut cells_gradient),
                || workspace([0, 4 * hidden, matrix.stride()]),
                |workspace, sequences, gates, for_hidden, for_cells| {
                    let (values, states) = ([cells, saved, gradient], [for_hidden, for_cells]);
                    parts::backward(self.0, values, &matrix, sequences, workspace, gates, states);
                },
            );
        };
        // SAFETY: the parts write all values.
        let [gates] = unsafe { parallel::written([4 * len], write) };
        let rows = self.0.joined([x, outputs, first_state]);
        let shape = [batch * time, inputs + hidden, 4 * hidden];
        let (mut input_gradient, bias) = linear::gradients(&rows, &gates, shape);
        let hidden_gradient = input_gradient.split_off(inputs * 4 * hidden);
        let x = x_wanted.then(|| {
            let gates = Matrix::new(&gates, [batch * time, 4 * hidden]);
            product(gates, Matrix::new(for_inputs, [inputs, 4 * hidden]).transpose())
        });
        [x.unwrap_or_default(), input_gradient, hidden_gradient, bias, state_gradient, cells_gradient]
    }
}
