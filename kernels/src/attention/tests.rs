use super::*;
use crate::{
    dropout::Kept,
    tests::{assert_close, everywhere, noise, read, same_for_every_number_of_threads},
};
use burn::tensor::{Bool, Device, Tensor, TensorData, activation::softmax};
use proptest::prelude::*;

const KEY: [u8; 32] = [9; 32];

/// Arguments of attention.
struct Case {
    of: Attention,
    prob: f64,
    /// Queries, keys and values.
    inputs: [Vec<f32>; 3],
    gradient: Vec<f32>,
    for_weights: Option<Vec<f32>>,
}

impl Case {
    fn new([batch, queries, keys, heads, head_width]: [usize; 5], prob: f64) -> Self {
        let width = heads * head_width;
        let dropout = (prob > 0.0).then(|| Dropout::new(prob, KEY));
        Self {
            of: Attention { batch, queries, keys, heads, width, mask: None, dropout },
            prob,
            inputs: [(1, queries), (2, keys), (3, keys)]
                .map(|(seed, rows)| noise(seed, batch * rows * width)),
            gradient: noise(4, batch * queries * width),
            for_weights: None,
        }
    }

    /// Masks a third of the scores.
    fn mask(&mut self, rows: usize, fill: f32) {
        let masked = noise(5, self.of.batch * rows * self.of.keys);
        self.of.mask = Some(Mask { masked: masked.iter().map(|value| *value < -0.33).collect(), fill });
    }

    /// Context, weights and the gradients of queries, keys and values.
    fn results(&self) -> [Vec<f32>; 5] {
        let inputs = self.inputs.each_ref().map(Vec::as_slice);
        let Forward { context, weights, signed } = self.of.forward(&inputs);
        let saved = if self.of.dropout.is_some() { &signed } else { &weights };
        let [query, key, value] =
            self.of.backward(&inputs, saved, (&self.gradient, self.for_weights.as_deref()));
        [context, weights, query, key, value]
    }

    /// The same with Burn's operations.
    fn wanted(&self) -> [Vec<f32>; 5] {
        let Attention { batch, queries, keys, heads, width, .. } = self.of;
        let (square, rows) = ([batch, heads, queries, keys], |rows| [batch, rows, heads, width / heads]);
        if square.contains(&0) {
            let zeros = |shape: [usize; 4]| vec![0.0; shape.iter().product()];
            return [rows(queries), square, rows(queries), rows(keys), rows(keys)].map(zeros);
        }
        let device = Device::flex().autodiff();
        let tensor = |values: &[f32], shape| Tensor::<1>::from_floats(values, &device).reshape::<4, _>(shape);
        let [query, key, value] = &self.inputs;
        let leaves = [tensor(query, rows(queries)), tensor(key, rows(keys)), tensor(value, rows(keys))]
            .map(Tensor::require_grad);
        let [query, key, value] = leaves.each_ref().map(|leaf| leaf.clone().swap_dims(1, 2));
        let mut scores = query.matmul(key.transpose()) * ((width / heads) as f32).powf(-0.5);
        if let Some(Mask { masked, fill }) = &self.of.mask {
            let shape = [batch, 1, masked.len() / (batch * keys), keys];
            let masked = Tensor::<4, Bool>::from_data(TensorData::new(masked.to_vec(), shape), &device);
            scores = scores.mask_fill(masked.expand(square), *fill);
        }
        let kept = Kept::draw(batch * heads, queries * keys, self.prob, KEY);
        let kept = kept.scale(&vec![1.0; square.iter().product()]);
        let weights = softmax(scores, 3) * tensor(&kept, square);
        let context = weights.clone().matmul(value).swap_dims(1, 2);
        let mut loss = (context.clone() * tensor(&self.gradient, rows(queries))).sum();
        if let Some(further) = &self.for_weights {
            loss = loss + (weights.clone() * tensor(further, square)).sum();
        }
        let gradients = loss.backward();
        let [query, key, value] = leaves.map(|leaf| read(leaf.grad(&gradients).expect("a gradient")));
        [read(context), read(weights), query, key, value]
    }
}

const NAMES: [&str; 5] = ["context", "weights", "queries", "keys", "values"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn attention_equals_burns_operations(
        sizes in (0..4_usize, 0..40_usize, 0..40_usize, 1..4_usize, 1..20_usize),
        (masked, for_all_queries, further) in any::<(bool, bool, bool)>(),
        (fill, prob) in (prop::sample::select(&[f32::MIN, -3.0]), prop::sample::select(&[0.0, 0.4])),
    ) {
        let mut case = Case::new(sizes.into(), prob);
        if masked {
            case.mask(if for_all_queries { 1 } else { case.of.queries }, fill);
        }
        case.for_weights = further.then(|| noise(6, case.of.batch * case.of.heads * case.of.queries * case.of.keys));
        let wanted = case.wanted();
        everywhere(|width| {
            for ((ours, wanted), name) in case.results().iter().zip(&wanted).zip(NAMES) {
                assert_close(ours, wanted, &format!("{name} of {:?}, {width}", case.of));
            }
        });
    }
}

#[test]
fn attention_is_bit_identical_for_every_number_of_threads() {
    let mut case = Case::new([5, 70, 41, 3, 11], 0.3);
    case.mask(70, -1e9);
    same_for_every_number_of_threads(|| case.results());
}

/// As in PyTorch.
#[test]
fn rows_without_a_finite_score_and_nan_give_nan() {
    everywhere(|what| {
        let nans = |case: &Case| case.results()[0].iter().map(|value| value.is_nan()).collect::<Vec<_>>();
        let mut case = Case::new([2, 3, 4, 1, 2], 0.0);
        let mask = |fill| Mask { masked: (0..24).map(|at| (16..20).contains(&at)).collect(), fill };
        case.of.mask = Some(mask(f32::NEG_INFINITY));
        // The second query of the second sequence.
        assert_eq!(nans(&case), (0..12).map(|at| (8..10).contains(&at)).collect::<Vec<_>>(), "{what}");
        case.of.mask = Some(mask(f32::MIN));
        assert_eq!(nans(&case), [false; 12], "{what}");
        for value in [f32::NAN, f32::INFINITY] {
            case.of.mask = None;
            case.inputs[0][4] = value;
            // The third query of the first sequence.
            assert_eq!(nans(&case), (0..12).map(|at| (4..6).contains(&at)).collect::<Vec<_>>(), "{what}");
        }
    });
}

/// Reference values from torch 2.15 in float64.
#[test]
fn values_and_gradients_equal_pytorchs() {
    let mut case = Case::new([1, 2, 3, 2, 2], 0.0);
    case.mask(2, -1.0);
    case.for_weights = Some(noise(6, 12));
    let wanted: [&[f64]; 5] = [
        &[0.3690123, 0.6391496, 0.5540695, -0.0100605, 0.4625237, 0.4172929, 0.3634312, 0.3744928],
        &[
            0.386043, 0.1264422, 0.4875149, 0.3772816, 0.3150332, 0.3076852, 0.5736027, 0.1377322, 0.288665,
            0.249273, 0.257168, 0.493559,
        ],
        &[-0.0098457, 0.09762551, 0.0959054, -0.2620624, 0.02093464, -0.1190614, -0.0555429, 0.08353047],
        &[
            0.1774422, -0.0505824, -0.034652, -0.2058259, -0.1438981, 0.03994517, 0.01821843, 0.06090021,
            -0.019206, 0.0064251, 0.01451186, 0.1141333,
        ],
        &[
            -0.288905, -0.3096519, 0.2402107, -0.4634558, -0.2204675, -0.26741, -0.0999316, -0.0422925,
            -0.2539196, -0.2447316, -0.1731564, -0.1045214,
        ],
    ];
    for ((ours, wanted), name) in case.results().iter().zip(wanted).zip(NAMES) {
        assert_close(ours, wanted, name);
    }
}
