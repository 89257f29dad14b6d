use super::*;
use crate::tests::{assert_close, everywhere, noise};
use proptest::prelude::*;

/// Arguments of a layer.
struct Case {
    lstm: Lstm,
    x: Vec<f32>,
    weights: [Vec<f32>; 3],
    state: [Vec<f32>; 2],
    gradient: Vec<f32>,
}

impl Case {
    fn new(lstm: Lstm, biased: bool) -> Self {
        let Lstm { batch, time, inputs, hidden, .. } = lstm;
        Self {
            lstm,
            x: noise(1, batch * time * inputs),
            weights: [
                noise(2, inputs * 4 * hidden),
                noise(3, hidden * 4 * hidden),
                noise(4, if biased { 4 * hidden } else { 0 }),
            ],
            state: [5, 6].map(|seed| noise(seed, batch * hidden)),
            gradient: noise(7, batch * (time + 1) * hidden),
        }
    }

    fn forward(&self) -> Forward {
        let [input, hidden, bias] = self.weights.each_ref().map(Vec::as_slice);
        self.lstm.forward(&self.x, Weights { input, hidden, bias }, self.state.each_ref().map(Vec::as_slice))
    }

    /// Outputs and all gradients.
    fn results(&self) -> [Vec<f32>; 7] {
        let Forward { outputs, saved } = self.forward();
        let [input, hidden, bias] = self.weights.each_ref().map(Vec::as_slice);
        let (weights, state) = (Weights { input, hidden, bias }, self.state.each_ref().map(Vec::as_slice));
        let gradients = self.lstm.backward(&self.x, weights, state, [&outputs, &self.gradient], &saved, true);
        let Gradients { x, input, hidden, bias, state: [h, c] } = gradients;
        [outputs, x, input, hidden, bias, h, c]
    }

    /// The same in plain loops.
    fn wanted(&self) -> [Vec<f64>; 7] {
        let Lstm { batch, time, inputs, hidden, reverse } = self.lstm;
        let wide = |values: &[f32]| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let x = wide(&self.x);
        let [w, u, bias] = self.weights.each_ref().map(|values| wide(values));
        let [h0, c0] = self.state.each_ref().map(|values| wide(values));
        let from = wide(&self.gradient);
        let mut outputs = vec![0.0; batch * (time + 1) * hidden];
        let [mut for_x, mut for_w, mut for_u] = [x.len(), w.len(), u.len()].map(|len| vec![0.0; len]);
        let [mut for_bias, mut for_h, mut for_c] = [4 * hidden, h0.len(), c0.len()].map(|len| vec![0.0; len]);
        for sequence in 0..batch {
            let units = sequence * hidden..(sequence + 1) * hidden;
            // Hidden and cell states before the first step and after each one, and the gates.
            let mut states = vec![(h0[units.clone()].to_vec(), c0[units.clone()].to_vec())];
            let mut gates = Vec::new();
            let order: Vec<_> = (0..time).map(|step| if reverse { time - 1 - step } else { step }).collect();
            for &step in &order {
                let (h, c) = states.last().expect("initial states");
                let input = &x[(sequence * time + step) * inputs..][..inputs];
                let sums: Vec<f64> = (0..4 * hidden)
                    .map(|gate| {
                        let along = |values: &[f64], matrix: &[f64]| -> f64 {
                            (0..values.len()).map(|at| values[at] * matrix[at * 4 * hidden + gate]).sum()
                        };
                        bias.get(gate).unwrap_or(&0.0) + along(input, &w) + along(h, &u)
                    })
                    .collect();
                let gate: Vec<[f64; 4]> = (0..hidden)
                    .map(|unit| {
                        let sigmoid = |gate: usize| 1.0 / (1.0 + f64::exp(-sums[gate * hidden + unit]));
                        [sigmoid(0), sigmoid(1), sums[2 * hidden + unit].tanh(), sigmoid(3)]
                    })
                    .collect();
                let c: Vec<f64> = gate.iter().zip(c).map(|([i, f, g, _], c)| f * c + i * g).collect();
                let h: Vec<f64> = gate.iter().zip(&c).map(|(gate, c)| gate[3] * c.tanh()).collect();
                outputs[(sequence * time + step) * hidden..][..hidden].copy_from_slice(&h);
                states.push((h, c));
                gates.push(gate);
            }
            let last = &states.last().expect("initial states").1;
            outputs[batch * time * hidden..][units.clone()].copy_from_slice(last);

            let mut dh = vec![0.0; hidden];
            let mut dc = from[batch * time * hidden..][units.clone()].to_vec();
            for (at, &step) in order.iter().enumerate().rev() {
                let ((h, c), after, gate) = (&states[at], &states[at + 1].1, &gates[at]);
                let row = sequence * time + step;
                let mut sums = vec![0.0; 4 * hidden];
                for unit in 0..hidden {
                    let [i, f, g, o] = gate[unit];
                    let state = dh[unit] + from[row * hidden + unit];
                    dc[unit] += state * o * (1.0 - after[unit].tanh().powi(2));
                    sums[unit] = dc[unit] * g * i * (1.0 - i);
                    sums[hidden + unit] = dc[unit] * c[unit] * f * (1.0 - f);
                    sums[2 * hidden + unit] = dc[unit] * i * (1.0 - g * g);
                    sums[3 * hidden + unit] = state * after[unit].tanh() * o * (1.0 - o);
                    dc[unit] *= f;
                }
                dh.fill(0.0);
                for (gate, sum) in sums.iter().enumerate() {
                    for_bias[gate] += sum;
                    for at in 0..inputs {
                        for_w[at * 4 * hidden + gate] += sum * x[row * inputs + at];
                        for_x[row * inputs + at] += sum * w[at * 4 * hidden + gate];
                    }
                    for at in 0..hidden {
                        for_u[at * 4 * hidden + gate] += sum * h[at];
                        dh[at] += sum * u[at * 4 * hidden + gate];
                    }
                }
            }
            for_h[units.clone()].copy_from_slice(&dh);
            for_c[units].copy_from_slice(&dc);
        }
        [outputs, for_x, for_w, for_u, for_bias, for_h, for_c]
    }
}

const NAMES: [&str; 7] = ["outputs", "x", "input weights", "hidden weights", "bias", "h0", "c0"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn lstm_equals_plain_loops(
        (batch, time, inputs, hidden) in (0..20_usize, 0..6_usize, 0..10_usize, 0..24_usize),
        (reverse, biased) in (any::<bool>(), any::<bool>()),
    ) {
        let case = Case::new(Lstm { batch, time, inputs, hidden, reverse }, biased);
        let wanted = case.wanted();
        everywhere(|width| {
            for ((ours, wanted), name) in case.results().iter().zip(&wanted).zip(NAMES) {
                assert_close(ours, wanted, &format!("{name} of {:?}, {width}", case.lstm));
            }
        });
    }
}

#[test]
fn lstm_is_bit_identical_for_every_number_of_threads() {
    let case = Case::new(Lstm { batch: 37, time: 5, inputs: 30, hidden: 70, reverse: false }, true);
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
            let mut case = Case::new(Lstm { batch, time, inputs, hidden, reverse: false }, true);
            let plain = case.forward().outputs;
            case.x[(8 * time + 2) * inputs] = value;
            let outputs = case.forward().outputs;
            let changed = (8 * time + 2) * hidden..batch * time * hidden;
            assert!(outputs[..changed.start] == plain[..changed.start], "{width}");
            if value.is_nan() {
                assert!(outputs[changed].iter().all(|output| output.is_nan()), "{width}");
                assert!(case.results()[2].iter().all(|gradient| gradient.is_nan()), "{width}");
            } else {
                // Infinite sums saturate the gates.
                assert!(outputs[changed].iter().all(|output| output.abs() <= 1.0), "{width}");
            }
        }
    });
}

/// Reference values from torch 2.15's `LSTM` in float64.
#[test]
fn values_and_gradients_equal_pytorchs() {
    let case = Case::new(Lstm { batch: 2, time: 3, inputs: 2, hidden: 2, reverse: false }, true);
    let outputs = [
        0.07580508,
        -0.232885,
        0.008742716,
        -0.2833441,
        -0.143269,
        -0.2754051,
        -0.2732427,
        -0.3197836,
        -0.158372,
        -0.1896664,
        -0.1967046,
        -0.3037704,
        -0.3509644,
        -0.419641,
        -0.7042038,
        -0.4036968,
    ];
    let x = [
        -0.05067139,
        0.1636578,
        -0.04710342,
        0.201654,
        0.0201987,
        0.2634025,
        -0.06969511,
        0.1410441,
        0.08783694,
        -0.02948123,
        0.08160047,
        -0.03495994,
    ];
    let input = [
        -0.1239484,
        -0.2152959,
        -0.007009447,
        -0.1081886,
        0.01230608,
        0.1695278,
        0.1021671,
        -0.09828278,
        0.0324686,
        -0.02108917,
        0.03520841,
        -0.007485265,
        0.05860277,
        0.03009142,
        0.1348723,
        0.03485559,
    ];
    let hidden = [
        0.04148678,
        -0.04634116,
        0.01440459,
        -0.01386543,
        -0.1952737,
        0.02085822,
        0.1583295,
        -0.06344678,
        -0.07213623,
        -0.009440221,
        0.03203697,
        -0.03346032,
        0.1686639,
        0.03402223,
        -0.04377211,
        0.1021326,
    ];
    let bias = [0.2393935, 0.1531353, -0.08878363, 0.127924, -0.4410041, -0.1770173, 0.06878344, -0.2280337];
    let (h, c) =
        ([-0.1247482, -0.1304808, -0.01784519, -0.1508715], [-0.1566509, 0.01735427, -0.1297794, 0.03175276]);
    let wanted: [&[f64]; 7] = [&outputs, &x, &input, &hidden, &bias, &h, &c];
    for ((ours, wanted), name) in case.results().iter().zip(wanted).zip(NAMES) {
        assert_close(ours, wanted, name);
    }
}
