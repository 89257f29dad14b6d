use super::*;
use crate::tests::{assert_close, everywhere, noise};
use proptest::prelude::*;

/// Arguments of a layer.
struct Case {
    gru: Gru,
    x: Vec<f32>,
    /// Of inputs and hidden states.
    weights: [Vec<f32>; 2],
    biases: [Vec<f32>; 2],
    state: Vec<f32>,
    gradient: Vec<f32>,
}

impl Case {
    fn new(gru: Gru, biased: [bool; 2]) -> Self {
        let Gru { batch, time, inputs, hidden, .. } = gru;
        Self {
            gru,
            x: noise(1, batch * time * inputs),
            weights: [noise(2, inputs * 3 * hidden), noise(3, hidden * 3 * hidden)],
            biases: [0, 1].map(|at| noise(4 + at as u64, if biased[at] { 3 * hidden } else { 0 })),
            state: noise(6, batch * hidden),
            gradient: noise(7, batch * time * hidden),
        }
    }

    fn weights(&self) -> Weights<'_> {
        let [input, hidden] = &self.weights;
        Weights { input, hidden, biases: self.biases.each_ref().map(Vec::as_slice) }
    }

    fn forward(&self) -> Forward {
        self.gru.forward(&self.x, self.weights(), &self.state)
    }

    /// Outputs and all gradients.
    fn results(&self) -> [Vec<f32>; 7] {
        let Forward { outputs, saved } = self.forward();
        let values = [&outputs, &self.gradient].map(Vec::as_slice);
        let gradients = self.gru.backward(&self.x, self.weights(), &self.state, values, &saved, true);
        let Gradients { x, input, hidden, biases: [input_bias, hidden_bias], state } = gradients;
        [outputs, x, input, hidden, input_bias, hidden_bias, state]
    }

    /// The same in plain loops.
    fn wanted(&self) -> [Vec<f64>; 7] {
        let Gru { batch, time, inputs, hidden, reverse } = self.gru;
        let columns = 3 * hidden;
        let wide = |values: &Vec<f32>| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let [x, h0, from] = [&self.x, &self.state, &self.gradient].map(wide);
        let ([w, u], [b, c]) = (self.weights.each_ref().map(wide), self.biases.each_ref().map(wide));
        let [mut outputs, mut for_x, mut for_w, mut for_u, mut for_b, mut for_c, mut for_h] =
            [from.len(), x.len(), w.len(), u.len(), columns, columns, h0.len()].map(|len| vec![0.0; len]);
        for sequence in 0..batch {
            let units = sequence * hidden..(sequence + 1) * hidden;
            // Hidden states before the first step and after each one, and r, z, n and the product with h of n.
            let (mut states, mut gates) = (vec![h0[units.clone()].to_vec()], Vec::new());
            let order: Vec<_> = (0..time).map(|step| if reverse { time - 1 - step } else { step }).collect();
            for &step in &order {
                let h = states.last().expect("initial states");
                let input = &x[(sequence * time + step) * inputs..][..inputs];
                let sum = |values: &[f64], matrix: &[f64], bias: &[f64], gate: usize| -> f64 {
                    let products = (0..values.len()).map(|at| values[at] * matrix[at * columns + gate]);
                    bias.get(gate).unwrap_or(&0.0) + products.sum::<f64>()
                };
                let gate: Vec<[f64; 4]> = (0..hidden)
                    .map(|unit| {
                        let [r, z] = [unit, hidden + unit].map(|gate| {
                            1.0 / (1.0 + f64::exp(-sum(input, &w, &b, gate) - sum(h, &u, &c, gate)))
                        });
                        let product = sum(h, &u, &c, 2 * hidden + unit);
                        [r, z, (sum(input, &w, &b, 2 * hidden + unit) + r * product).tanh(), product]
                    })
                    .collect();
                let h: Vec<f64> = gate.iter().zip(h).map(|([_, z, n, _], h)| (1.0 - z) * n + z * h).collect();
                outputs[(sequence * time + step) * hidden..][..hidden].copy_from_slice(&h);
                states.push(h);
                gates.push(gate);
            }
            let mut dh = vec![0.0; hidden];
            for (at, &step) in order.iter().enumerate().rev() {
                let (h, row) = (&states[at], sequence * time + step);
                let [mut for_input, mut for_hidden] = [(); 2].map(|()| vec![0.0; columns]);
                for unit in 0..hidden {
                    let [r, z, n, product] = gates[at][unit];
                    let state = dh[unit] + from[row * hidden + unit];
                    let candidate = state * (1.0 - z) * (1.0 - n * n);
                    let gates = [candidate * product * r * (1.0 - r), state * (h[unit] - n) * z * (1.0 - z)];
                    for (gate, value) in gates.into_iter().chain([candidate]).enumerate() {
                        for_input[gate * hidden + unit] = value;
                        for_hidden[gate * hidden + unit] = if gate == 2 { value * r } else { value };
                    }
                    dh[unit] = state * z;
                }
                for gate in 0..columns {
                    for_b[gate] += for_input[gate];
                    for_c[gate] += for_hidden[gate];
                    for at in 0..inputs {
                        for_w[at * columns + gate] += for_input[gate] * x[row * inputs + at];
                        for_x[row * inputs + at] += for_input[gate] * w[at * columns + gate];
                    }
                    for at in 0..hidden {
                        for_u[at * columns + gate] += for_hidden[gate] * h[at];
                        dh[at] += for_hidden[gate] * u[at * columns + gate];
                    }
                }
            }
            for_h[units].copy_from_slice(&dh);
        }
        [outputs, for_x, for_w, for_u, for_b, for_c, for_h]
    }
}

const NAMES: [&str; 7] =
    ["outputs", "x", "input weights", "hidden weights", "input bias", "hidden bias", "h0"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn gru_equals_plain_loops(
        (batch, time, inputs, hidden) in (0..20_usize, 0..6_usize, 0..10_usize, 0..24_usize),
        (reverse, biased) in any::<(bool, [bool; 2])>(),
    ) {
        let case = Case::new(Gru { batch, time, inputs, hidden, reverse }, biased);
        let wanted = case.wanted();
        everywhere(|width| {
            for ((ours, wanted), name) in case.results().iter().zip(&wanted).zip(NAMES) {
                assert_close(ours, wanted, &format!("{name} of {:?}, {width}", case.gru));
            }
        });
    }
}

#[test]
fn gru_is_bit_identical_for_every_number_of_threads() {
    let case = Case::new(Gru { batch: 37, time: 5, inputs: 30, hidden: 70, reverse: false }, [true; 2]);
    let results = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().expect("a pool");
        pool.install(|| case.results())
    };
    assert!(results(1) == results(3));
}

#[test]
fn nan_and_infinity_affect_later_steps_of_their_sequence() {
    let (batch, time, inputs, hidden) = (9, 4, 3, 5);
    everywhere(|width| {
        for value in [f32::NAN, f32::INFINITY] {
            let mut case = Case::new(Gru { batch, time, inputs, hidden, reverse: false }, [true; 2]);
            let plain = case.forward().outputs;
            let changed = (8 * time + 2) * hidden;
            case.x[(8 * time + 2) * inputs] = value;
            let outputs = case.forward().outputs;
            assert!(outputs[..changed] == plain[..changed], "{width}");
            if value.is_nan() {
                assert!(outputs[changed..].iter().all(|output| output.is_nan()), "{width}");
                assert!(case.results()[2].iter().all(|gradient| gradient.is_nan()), "{width}");
            } else {
                // Infinite sums saturate the gates.
                assert!(outputs[changed..].iter().all(|output| output.abs() <= 1.0), "{width}");
            }
        }
    });
}

/// Reference values from torch 2.15's `GRU` in float64.
#[test]
fn values_and_gradients_equal_pytorchs() {
    let case = Case::new(Gru { batch: 2, time: 3, inputs: 2, hidden: 2, reverse: false }, [true; 2]);
    let wanted: [&[f64]; 7] = [
        &[
            0.4541498, -0.795473, 0.4186665, -0.9115414, 0.3046311, -0.7220872, -0.3915229, -0.5318965,
            -0.3651674, -0.7543807, -0.4086852, -0.8291355,
        ],
        &[
            -0.0368586,
            0.06898721,
            -0.02838566,
            0.03866009,
            0.03555821,
            -0.2026959,
            -0.05133066,
            0.2379124,
            0.03299029,
            0.04340063,
            0.02186957,
            0.01076317,
        ],
        &[
            0.008540452,
            -0.05177953,
            -0.01306264,
            0.01639436,
            0.07430256,
            0.4476955,
            -0.0002700735,
            -0.004077675,
            -0.02309409,
            -0.02748658,
            -0.05244782,
            0.07614214,
        ],
        &[
            -0.001581561,
            0.03407657,
            -0.0127435,
            0.02002714,
            -0.04242126,
            -0.03351097,
            -0.0001071456,
            0.02489185,
            0.03254894,
            -0.03750158,
            -0.06529426,
            -0.09116967,
        ],
        &[0.009225857, -0.06404695, -0.03837218, 0.09056117, 0.3017802, 0.7094287],
        &[0.009225857, -0.06404695, -0.03837218, 0.09056117, 0.1598621, 0.2383408],
        &[0.5553826, 0.2149246, -0.1481128, 0.0659985],
    ];
    for ((ours, wanted), name) in case.results().iter().zip(wanted).zip(NAMES) {
        assert_close(ours, wanted, name);
    }
}
