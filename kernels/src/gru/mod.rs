//! GRU over all time steps (Cho et al. 2014, arXiv 1406.1078, with the reset gate of PyTorch).

mod parts;

use crate::{
    linear,
    parallel::{self, Room},
    product::{Matrix, product},
    recurrent::{Packed, Recurrent, SEQUENCES, Sizes, workspace},
};

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
        let Sizes { batch, time, inputs, hidden, .. } = self.0;
        self.0.check(3, [x, for_inputs, for_hidden], &[input_bias, hidden_bias], &[state]);
        let matrices = [(for_inputs, inputs, input_bias), (for_hidden, hidden, hidden_bias)].map(
            |(matrix, rows, bias)| {
                Packed::new([rows, 3 * hidden], bias, |row, column| matrix[row * 3 * hidden + column])
            },
        );
        let (rows, lens) = ([batch, SEQUENCES], [time * hidden, time * 4 * hidden, 0]);
        let new = || workspace([hidden, matrices[0].stride(), matrices[1].stride()]);
        let write = |workspace: &mut _, sequences, outputs: Room, saved: Room, _: Room<()>| {
            parts::forward(self.0, [x, state], &matrices, sequences, workspace, [outputs, saved]);
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
        let Sizes { batch, time, inputs, hidden, .. } = self.0;
        let len = self.0.check(3, [x, for_inputs, for_hidden], &[input_bias, hidden_bias], &[state]);
        assert_eq!([outputs.len(), gradient.len(), saved.len()], [len, len, 4 * len], "lengths of forward");
        let matrix =
            Packed::new([3 * hidden, hidden], &[], |row, column| for_hidden[column * 3 * hidden + row]);
        let values = [state, outputs, saved, gradient];
        let mut state_gradient = vec![0.0; batch * hidden];
        let write = |[from_input, from_hidden]: [Room; 2]| {
            parallel::write_parts(
                [batch, SEQUENCES],
                [time * 3 * hidden, time * 3 * hidden, hidden],
                (from_input, from_hidden, &mut state_gradient),
                || workspace([3 * hidden, 3 * hidden, matrix.stride()]),
                |workspace, sequences, for_input, for_hidden, state| {
                    let to = [for_input, for_hidden];
                    parts::backward(self.0, values, &matrix, sequences, workspace, to, state);
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
        let x = x_wanted.then(|| {
            let gates = Matrix::new(&from_input, [batch * time, 3 * hidden]);
            product(gates, Matrix::new(for_inputs, [inputs, 3 * hidden]).transpose())
        });
        [x.unwrap_or_default(), input_gradient, hidden_gradient, input_bias, hidden_bias, state_gradient]
    }
}
