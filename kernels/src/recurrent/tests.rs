use super::{Gru, Lstm, Recurrent, Sizes};
use crate::tests::{assert_close, everywhere, noise, same_for_every_number_of_threads};

/// A layer with its inputs and the gradient of its outputs.
struct Case<L> {
    layer: L,
    inputs: [Vec<f32>; 6],
    gradient: Vec<f32>,
}

fn lstm(sizes: Sizes) -> Case<Lstm> {
    let Sizes { batch, time, hidden, .. } = sizes;
    let states = batch * hidden;
    Case::new(Lstm(sizes), sizes, 4, [4 * hidden, states, states], (time + 1) * states)
}

fn gru(sizes: Sizes) -> Case<Gru> {
    let Sizes { batch, time, hidden, .. } = sizes;
    Case::new(Gru(sizes), sizes, 3, [3 * hidden, 3 * hidden, batch * hidden], batch * time * hidden)
}

impl<L: Recurrent> Case<L> {
    /// `others` are the lengths of the inputs after `x` and the weights.
    fn new(layer: L, sizes: Sizes, gates: usize, others: [usize; 3], outputs: usize) -> Self {
        let Sizes { batch, time, inputs, hidden, .. } = sizes;
        let columns = gates * hidden;
        let [a, b, c] = others;
        let mut seed = 0;
        let mut next = |len| {
            seed += 1;
            noise(seed, len)
        };
        let inputs = [batch * time * inputs, inputs * columns, hidden * columns, a, b, c].map(&mut next);
        Self { layer, inputs, gradient: next(outputs) }
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

    /// Compares outputs and all gradients, for every vector width.
    fn assert_close(&self, wanted: [&[f64]; 7]) {
        everywhere(|width| {
            for (at, (ours, wanted)) in self.results().iter().zip(wanted).enumerate() {
                assert_close(ours, wanted, &format!("result {at} of {:?}, {width}", self.layer));
            }
        });
    }
}

#[test]
fn empty_batches_sequences_and_layers_are_supported() {
    for [batch, time, inputs, hidden] in [[0, 2, 3, 4], [2, 0, 3, 4], [2, 3, 0, 4], [2, 3, 4, 0], [0; 4]] {
        let sizes = Sizes { batch, time, inputs, hidden, reverse: true };
        let [outputs, for_x, ..] = lstm(sizes).results();
        assert_eq!([outputs.len(), for_x.len()], [batch * (time + 1) * hidden, batch * time * inputs]);
        let [outputs, for_x, ..] = gru(sizes).results();
        assert_eq!([outputs.len(), for_x.len()], [batch * time * hidden, batch * time * inputs]);
    }
}

#[test]
fn a_reversed_gru_equals_one_of_reversed_sequences() {
    let sizes = Sizes { batch: 3, time: 5, inputs: 4, hidden: 6, reverse: false };
    let (ours, mut other) = (gru(Sizes { reverse: true, ..sizes }), gru(sizes));
    let reversed = |rows: &[f32], len: usize| -> Vec<f32> {
        rows.chunks(sizes.time * len).flat_map(|rows| rows.rchunks(len).flatten().copied()).collect()
    };
    other.inputs[0] = reversed(&other.inputs[0], sizes.inputs);
    other.gradient = reversed(&other.gradient, sizes.hidden);
    let [outputs, x, weights @ ..] = other.results();
    let [our_outputs, our_x, our_weights @ ..] = ours.results();
    assert!(our_outputs == reversed(&outputs, sizes.hidden) && our_x == reversed(&x, sizes.inputs));
    for (ours, wanted) in our_weights.iter().zip(&weights) {
        assert_close(ours, wanted, "weights");
    }
}

#[test]
fn nan_and_infinity_affect_later_steps_of_their_sequence() {
    fn check<L: Recurrent>(case: impl Fn(Sizes) -> Case<L>, width: &str) {
        let (batch, time, inputs, hidden) = (9, 4, 3, 5);
        for value in [f32::NAN, f32::INFINITY] {
            let mut case = case(Sizes { batch, time, inputs, hidden, reverse: false });
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
        check(lstm, width);
        check(gru, width);
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
    lstm(REFERENCE).assert_close([&outputs, &x, &input, &hidden, &bias, &h, &c]);
}

#[test]
fn layers_are_bit_identical_for_every_number_of_threads() {
    for (batch, reverse) in [(33, false), (70, true)] {
        let sizes = Sizes { batch, time: 3, inputs: 5, hidden: 20, reverse };
        same_for_every_number_of_threads(|| (lstm(sizes).results(), gru(sizes).results()));
    }
}

#[test]
fn gru_equals_pytorchs() {
    gru(REFERENCE).assert_close([
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
    ]);
}
