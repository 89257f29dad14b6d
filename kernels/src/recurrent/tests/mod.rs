mod plain;

use super::Sizes;
use crate::{
    gru::Gru,
    lstm::Lstm,
    tests::{assert_close, everywhere, noise, same_for_every_number_of_threads},
};
use plain::Plain;
use proptest::prelude::*;

/// A layer with its inputs and the gradient of its outputs.
struct Case<L> {
    sizes: Sizes,
    layer: L,
    inputs: [Vec<f32>; 6],
    gradient: Vec<f32>,
}

impl<L: Plain> Case<L> {
    fn new(sizes: Sizes, biased: [bool; 2]) -> Self {
        let Sizes { batch, time, inputs, hidden, .. } = sizes;
        let (columns, states) = (L::GATES * hidden, batch * hidden);
        let biases = biased.map(|biased| if biased { columns } else { 0 });
        let others = if L::CELLS { [biases[0], states, states] } else { [biases[0], biases[1], states] };
        let lens =
            [batch * time * inputs, inputs * columns, hidden * columns, others[0], others[1], others[2]];
        let mut seed = 0;
        let mut next = |len| {
            seed += 1;
            noise(seed, len)
        };
        let inputs = lens.map(&mut next);
        let gradient = next(batch * (time + usize::from(L::CELLS)) * hidden);
        Self { sizes, layer: L::of(sizes), inputs, gradient }
    }

    fn outputs(&self) -> Vec<f32> {
        let [outputs, _] = self.layer.forward(self.inputs.each_ref().map(Vec::as_slice));
        outputs
    }

    /// Outputs and all gradients.
    fn results(&self) -> [Vec<f32>; 7] {
        let inputs = self.inputs.each_ref().map(Vec::as_slice);
        let [outputs, saved] = self.layer.forward(inputs);
        let [x, w, u, a, b, c] = self.layer.backward(inputs, [&outputs, &self.gradient], &saved, true);
        [outputs, x, w, u, a, b, c]
    }

    /// The same in plain loops.
    fn wanted(&self) -> [Vec<f64>; 7] {
        let Sizes { batch, time, inputs, hidden, reverse } = self.sizes;
        let columns = L::GATES * hidden;
        let wide = |values: &Vec<f32>| values.iter().map(|value| f64::from(*value)).collect::<Vec<_>>();
        let (all, none, from) = (self.inputs.each_ref().map(wide), Vec::new(), wide(&self.gradient));
        let [x, w, u, b, fifth, sixth] = &all;
        let (c, h0, c0) = if L::CELLS { (&none, fifth, sixth) } else { (fifth, sixth, &none) };
        let states_len = batch * hidden;
        let lens = [from.len(), x.len(), w.len(), u.len(), columns, columns, states_len, states_len];
        let [mut outputs, mut for_x, mut for_w, mut for_u, mut for_b, mut for_c, mut for_h0, mut for_c0] =
            lens.map(|len| vec![0.0; len]);
        for sequence in 0..batch {
            let units = sequence * hidden..(sequence + 1) * hidden;
            // States of the units before the first step and after each one, and products.
            let first = units.clone().map(|at| [h0[at], if L::CELLS { c0[at] } else { 0.0 }]);
            let (mut states, mut products) = (vec![first.collect::<Vec<_>>()], Vec::new());
            let order: Vec<_> = (0..time).map(|step| if reverse { time - 1 - step } else { step }).collect();
            for &step in &order {
                let (row, before) = (sequence * time + step, states.last().expect("initial states"));
                let state: Vec<f64> = before.iter().map(|state| state[0]).collect();
                let sides = [(&x[row * inputs..][..inputs], w, b), (&state[..], u, c)];
                let of_unit = |unit: usize| {
                    sides.map(|(values, matrix, bias)| {
                        [0, 1, 2, 3].map(|gate| {
                            let column = gate % L::GATES * hidden + unit;
                            let along =
                                (0..values.len()).map(|at| values[at] * matrix[at * columns + column]);
                            bias.get(column).unwrap_or(&0.0) + along.sum::<f64>()
                        })
                    })
                };
                let of_step: Vec<_> = (0..hidden).map(of_unit).collect();
                let after: Vec<_> = of_step.iter().zip(before).map(|(p, s)| L::after(*p, *s)).collect();
                (0..hidden).for_each(|unit| outputs[row * hidden + unit] = after[unit][0]);
                states.push(after);
                products.push(of_step);
            }
            let mut slopes = vec![[0.0; 2]; hidden];
            if L::CELLS {
                let last = states.last().expect("initial states");
                for unit in 0..hidden {
                    let at = batch * time * hidden + sequence * hidden + unit;
                    (outputs[at], slopes[unit][1]) = (last[unit][1], from[at]);
                }
            }
            for (at, &step) in order.iter().enumerate().rev() {
                let (before, row) = (&states[at], sequence * time + step);
                let mut sums = [(); 2].map(|()| vec![0.0; columns]);
                for unit in 0..hidden {
                    let after = [slopes[unit][0] + from[row * hidden + unit], slopes[unit][1]];
                    let (sides, slope) = L::before(products[at][unit], before[unit], after);
                    slopes[unit] = slope;
                    for (sums, side) in sums.iter_mut().zip(sides) {
                        (0..L::GATES).for_each(|gate| sums[gate * hidden + unit] = side[gate]);
                    }
                }
                for column in 0..columns {
                    let [of_input, of_hidden] = [sums[0][column], sums[1][column]];
                    for_b[column] += of_input;
                    for_c[column] += of_hidden;
                    for at in 0..inputs {
                        for_w[at * columns + column] += of_input * x[row * inputs + at];
                        for_x[row * inputs + at] += of_input * w[at * columns + column];
                    }
                    for at in 0..hidden {
                        for_u[at * columns + column] += of_hidden * before[at][0];
                        slopes[at][0] += of_hidden * u[at * columns + column];
                    }
                }
            }
            units.zip(slopes).for_each(|(at, slope)| [for_h0[at], for_c0[at]] = slope);
        }
        let others = if L::CELLS { [for_b, for_h0, for_c0] } else { [for_b, for_c, for_h0] };
        let [a, b, c] = others;
        [outputs, for_x, for_w, for_u, a, b, c]
    }

    fn assert_close<V: AsRef<[f64]>>(&self, wanted: &[V; 7], what: &str) {
        for ((ours, wanted), name) in self.results().iter().zip(wanted).zip(L::NAMES) {
            assert_close(ours, wanted.as_ref(), &format!("{name} of {:?}, {what}", self.layer));
        }
    }

    fn equals_plain_loops(&self) {
        let wanted = self.wanted();
        everywhere(|width| self.assert_close(&wanted, width));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn recurrent_layers_equal_plain_loops(
        (batch, time, inputs, hidden) in (0..20_usize, 0..6_usize, 0..10_usize, 0..24_usize),
        (reverse, biased) in any::<(bool, [bool; 2])>(),
    ) {
        let sizes = Sizes { batch, time, inputs, hidden, reverse };
        Case::<Lstm>::new(sizes, biased).equals_plain_loops();
        Case::<Gru>::new(sizes, biased).equals_plain_loops();
    }
}

#[test]
fn recurrent_layers_are_bit_identical_for_every_number_of_threads() {
    let sizes = Sizes { batch: 37, time: 5, inputs: 30, hidden: 70, reverse: false };
    same_for_every_number_of_threads(|| {
        (Case::<Lstm>::new(sizes, [true; 2]).results(), Case::<Gru>::new(sizes, [true; 2]).results())
    });
}

#[test]
fn nan_and_infinity_affect_later_steps_of_their_sequence() {
    fn check<L: Plain>(width: &str) {
        let (batch, time, inputs, hidden) = (9, 4, 3, 5);
        for value in [f32::NAN, f32::INFINITY] {
            let mut case = Case::<L>::new(Sizes { batch, time, inputs, hidden, reverse: false }, [true; 2]);
            let plain = case.outputs();
            case.inputs[0][(8 * time + 2) * inputs] = value;
            let outputs = case.outputs();
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
    }
    everywhere(|width| {
        check::<Lstm>(width);
        check::<Gru>(width);
    });
}

/// Sizes of the reference values from torch 2.15 in float64.
const REFERENCE: Sizes = Sizes { batch: 2, time: 3, inputs: 2, hidden: 2, reverse: false };

#[test]
fn lstm_equals_pytorchs() {
    let outputs = [
        0.07580508, -0.232885, 0.0087427, -0.2833441, -0.143269, -0.2754051, -0.2732427, -0.3197836,
        -0.158372, -0.1896664, -0.1967046, -0.3037704, -0.3509644, -0.419641, -0.7042038, -0.4036968,
    ];
    let x = [
        -0.0506714, 0.1636578, -0.0471034, 0.201654, 0.0201987, 0.2634025, -0.0696951, 0.1410441, 0.08783694,
        -0.0294812, 0.08160047, -0.0349599,
    ];
    let input = [
        -0.1239484, -0.2152959, -0.0070094, -0.1081886, 0.01230608, 0.1695278, 0.1021671, -0.0982828,
        0.0324686, -0.0210892, 0.03520841, -0.0074853, 0.05860277, 0.03009142, 0.1348723, 0.03485559,
    ];
    let hidden = [
        0.04148678, -0.0463412, 0.01440459, -0.0138654, -0.1952737, 0.02085822, 0.1583295, -0.0634468,
        -0.0721362, -0.0094402, 0.03203697, -0.0334603, 0.1686639, 0.03402223, -0.0437721, 0.1021326,
    ];
    let bias = [0.2393935, 0.1531353, -0.0887836, 0.127924, -0.4410041, -0.1770173, 0.06878344, -0.2280337];
    let (h, c) =
        ([-0.1247482, -0.1304808, -0.0178452, -0.1508715], [-0.1566509, 0.01735427, -0.1297794, 0.03175276]);
    let wanted: [&[f64]; 7] = [&outputs, &x, &input, &hidden, &bias, &h, &c];
    Case::<Lstm>::new(REFERENCE, [true; 2]).assert_close(&wanted, "PyTorch");
}

#[test]
fn gru_equals_pytorchs() {
    let wanted: [&[f64]; 7] = [
        &[
            0.4541498, -0.795473, 0.4186665, -0.9115414, 0.3046311, -0.7220872, -0.3915229, -0.5318965,
            -0.3651674, -0.7543807, -0.4086852, -0.8291355,
        ],
        &[
            -0.0368586, 0.06898721, -0.0283857, 0.03866009, 0.03555821, -0.2026959, -0.0513307, 0.2379124,
            0.03299029, 0.04340063, 0.02186957, 0.01076317,
        ],
        &[
            0.0085405, -0.0517795, -0.0130626, 0.01639436, 0.07430256, 0.4476955, -0.0002701, -0.0040777,
            -0.0230941, -0.0274866, -0.0524478, 0.07614214,
        ],
        &[
            -0.0015816, 0.03407657, -0.0127435, 0.02002714, -0.0424213, -0.033511, -0.0001071, 0.02489185,
            0.03254894, -0.0375016, -0.0652943, -0.0911697,
        ],
        &[0.0092259, -0.064047, -0.0383722, 0.09056117, 0.3017802, 0.7094287],
        &[0.0092259, -0.064047, -0.0383722, 0.09056117, 0.1598621, 0.2383408],
        &[0.5553826, 0.2149246, -0.1481128, 0.0659985],
    ];
    Case::<Gru>::new(REFERENCE, [true; 2]).assert_close(&wanted, "PyTorch");
}
