//! Steps of the layers in plain arithmetic.

use super::super::{Recurrent, Sizes};
use crate::{gru::Gru, lstm::Lstm};

/// The steps of a layer in plain arithmetic.
pub trait Plain: Recurrent {
    const GATES: usize;
    /// Whether there are cell states. The other layer has a second bias.
    const CELLS: bool;
    /// Outputs and gradients.
    const NAMES: [&str; 7];

    fn of(sizes: Sizes) -> Self;

    /// Hidden and cell state of a unit, from its products with the inputs and with the hidden states.
    fn after(products: [[f64; 4]; 2], states: [f64; 2]) -> [f64; 2];

    /// Gradients of the products and, besides them, of the states before the step, from those of the states after it.
    fn before(products: [[f64; 4]; 2], states: [f64; 2], after: [f64; 2]) -> ([[f64; 4]; 2], [f64; 2]);
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + f64::exp(-x))
}

/// Activated gates of an LSTM.
fn lstm_gates([inputs, hidden]: [[f64; 4]; 2]) -> [f64; 4] {
    let [i, f, g, o] = [0, 1, 2, 3].map(|gate| inputs[gate] + hidden[gate]);
    [sigmoid(i), sigmoid(f), g.tanh(), sigmoid(o)]
}

impl Plain for Lstm {
    const GATES: usize = 4;
    const CELLS: bool = true;
    const NAMES: [&str; 7] = ["outputs", "x", "input weights", "hidden weights", "bias", "h0", "c0"];

    fn of(sizes: Sizes) -> Self {
        Self(sizes)
    }

    fn after(products: [[f64; 4]; 2], [_, cell]: [f64; 2]) -> [f64; 2] {
        let [i, f, g, o] = lstm_gates(products);
        let cell = f * cell + i * g;
        [o * cell.tanh(), cell]
    }

    fn before(
        products: [[f64; 4]; 2],
        states @ [_, cell]: [f64; 2],
        [state, after]: [f64; 2],
    ) -> ([[f64; 4]; 2], [f64; 2]) {
        let [i, f, g, o] = lstm_gates(products);
        let tanh = Self::after(products, states)[1].tanh();
        let for_cell = after + state * o * (1.0 - tanh.powi(2));
        let sums = [
            for_cell * g * i * (1.0 - i),
            for_cell * cell * f * (1.0 - f),
            for_cell * i * (1.0 - g * g),
            state * tanh * o * (1.0 - o),
        ];
        ([sums; 2], [0.0, for_cell * f])
    }
}

/// Activated gates of a GRU.
fn gru_gates([inputs, hidden]: [[f64; 4]; 2]) -> [f64; 3] {
    let [r, z] = [0, 1].map(|gate| sigmoid(inputs[gate] + hidden[gate]));
    [r, z, (inputs[2] + r * hidden[2]).tanh()]
}

impl Plain for Gru {
    const GATES: usize = 3;
    const CELLS: bool = false;
    const NAMES: [&str; 7] =
        ["outputs", "x", "input weights", "hidden weights", "input bias", "hidden bias", "h0"];

    fn of(sizes: Sizes) -> Self {
        Self(sizes)
    }

    fn after(products: [[f64; 4]; 2], [state, _]: [f64; 2]) -> [f64; 2] {
        let [_, z, n] = gru_gates(products);
        [(1.0 - z) * n + z * state, 0.0]
    }

    fn before(
        products: [[f64; 4]; 2],
        [before, _]: [f64; 2],
        [state, _]: [f64; 2],
    ) -> ([[f64; 4]; 2], [f64; 2]) {
        let [r, z, n] = gru_gates(products);
        let candidate = state * (1.0 - z) * (1.0 - n * n);
        let reset = candidate * products[1][2] * r * (1.0 - r);
        let update = state * (before - n) * z * (1.0 - z);
        ([[reset, update, candidate, 0.0], [reset, update, candidate * r, 0.0]], [state * z, 0.0])
    }
}
