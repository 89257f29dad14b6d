use super::*;
use crate::{
    dropout::Kept,
    tests::{assert_close, everywhere, noise, same_for_every_number_of_threads},
};
use proptest::prelude::*;

const KEY: [u8; 32] = [9; 32];

/// Arguments of attention.
struct Case {
    /// Without the mask.
    of: Attention<'static>,
    prob: f64,
    masked: Option<Vec<bool>>,
    fill: f32,
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
            masked: None,
            fill: 0.0,
            inputs: [(1, queries), (2, keys), (3, keys)]
                .map(|(seed, rows)| noise(seed, batch * rows * width)),
            gradient: noise(4, batch * queries * width),
            for_weights: None,
        }
    }

    /// Masks a third of the scores.
    fn mask(&mut self, rows: usize, fill: f32) {
        let masked = noise(5, self.of.batch * rows * self.of.keys);
        self.masked = Some(masked.iter().map(|value| *value < -0.33).collect());
        self.fill = fill;
    }

    /// Context, weights and the gradients of queries, keys and values.
    fn results(&self) -> [Vec<f32>; 5] {
        let mask = self.masked.as_ref().map(|masked| Mask { masked, fill: self.fill });
        let of = Attention { mask, ..self.of };
        let inputs = self.inputs.each_ref().map(Vec::as_slice);
        let Forward { context, weights, signed } = of.forward(&inputs);
        let saved = if self.of.dropout.is_some() { &signed } else { &weights };
        let [query, key, value] = of.backward(&inputs, saved, (&self.gradient, self.for_weights.as_deref()));
        [context, weights, query, key, value]
    }

    /// The same in plain loops.
    fn wanted(&self) -> [Vec<f64>; 5] {
        let Attention { batch, queries, keys, heads, width, .. } = self.of;
        let (square, head_width) = (queries * keys, width / heads);
        let scale = (head_width as f64).powf(-0.5);
        let kept =
            Kept::draw(batch * heads, square, self.prob, KEY).scale(&vec![1.0; batch * heads * square]);
        let [query, key, value] = &self.inputs;
        let mut context = vec![0.0; query.len()];
        let mut all_weights = vec![0.0; kept.len()];
        let [mut for_query, mut for_key, mut for_value] =
            [query, key, value].map(|values| vec![0.0; values.len()]);
        for row in 0..batch * heads * queries {
            let (sequence, head) = (row / queries / heads, row / queries % heads);
            let query_at = |unit| (sequence * queries + row % queries) * width + head * head_width + unit;
            let key_at = |key, unit| (sequence * keys + key) * width + head * head_width + unit;
            let dot = |a: &[f32], b: &[f32], key| -> f64 {
                (0..head_width)
                    .map(|unit| f64::from(a[query_at(unit)]) * f64::from(b[key_at(key, unit)]))
                    .sum()
            };
            let masked: Vec<bool> = (0..keys)
                .map(|key| {
                    self.masked.as_ref().is_some_and(|masked| {
                        let rows = masked.len() / (batch * keys);
                        masked[(sequence * rows + row % queries % rows) * keys + key]
                    })
                })
                .collect();
            let scores: Vec<f64> = (0..keys)
                .map(|at| if masked[at] { f64::from(self.fill) } else { scale * dot(query, key, at) })
                .collect();
            let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
            let weights: Vec<f64> = powers.iter().map(|power| power / powers.iter().sum::<f64>()).collect();
            let kept = &kept[row * keys..][..keys];
            let for_weights: Vec<f64> = (0..keys)
                .map(|at| {
                    let further = self.for_weights.as_ref().map_or(0.0, |values| values[row * keys + at]);
                    (dot(&self.gradient, value, at) + f64::from(further)) * f64::from(kept[at])
                })
                .collect();
            let mean: f64 = weights.iter().zip(&for_weights).map(|(a, b)| a * b).sum();
            for at in 0..keys {
                let weight = weights[at] * f64::from(kept[at]);
                let score = if masked[at] { 0.0 } else { scale * weights[at] * (for_weights[at] - mean) };
                all_weights[row * keys + at] = weight;
                for unit in 0..head_width {
                    let (q, k) = (query_at(unit), key_at(at, unit));
                    context[q] += weight * f64::from(value[k]);
                    for_query[q] += score * f64::from(key[k]);
                    for_key[k] += score * f64::from(query[q]);
                    for_value[k] += weight * f64::from(self.gradient[q]);
                }
            }
        }
        [context, all_weights, for_query, for_key, for_value]
    }
}

const NAMES: [&str; 5] = ["context", "weights", "queries", "keys", "values"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn attention_equals_plain_loops(
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
fn causal_attention_equals_masked_attention() {
    // Products skip later positions from 33 positions on.
    for [batch, time, heads, head_width] in
        [[0, 2, 1, 1], [2, 0, 1, 1], [1, 1, 1, 1], [2, 33, 2, 7], [3, 70, 1, 4]]
    {
        let mut case = Case::new([batch, time, time, heads, head_width], 0.0);
        let width = heads * head_width;
        case.masked = Some((0..batch * time * time).map(|at| at % time > at / time % time).collect());
        case.fill = f32::NEG_INFINITY;
        let row = |of: &[Vec<f32>; 3], row| {
            of.iter().flat_map(move |part| part[row * width..][..width].to_vec()).collect::<Vec<_>>()
        };
        let packed = |of: &[Vec<f32>; 3]| (0..batch * time).flat_map(|at| row(of, at)).collect::<Vec<_>>();
        let all = packed(&case.inputs);
        let attention =
            Attention { batch, queries: time, keys: time, heads, width, mask: None, dropout: None };
        everywhere(|what| {
            let Forward { context: output, weights, .. } = attention.forward(&[&all]);
            let [gradient, ..] = attention.backward(&[&all], &weights, (&case.gradient, None));
            let [context, wanted_weights, query, key, value] = case.results();
            for (ours, wanted) in
                [(output, context), (weights, wanted_weights), (gradient, packed(&[query, key, value]))]
            {
                let wanted: Vec<f64> = wanted.into_iter().map(f64::from).collect();
                assert_close(&ours, &wanted, &format!("{attention:?}, {what}"));
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
        case.masked = Some((0..24).map(|at| (16..20).contains(&at)).collect());
        case.fill = f32::NEG_INFINITY;
        // The second query of the second sequence.
        assert_eq!(nans(&case), (0..12).map(|at| (8..10).contains(&at)).collect::<Vec<_>>(), "{what}");
        case.fill = f32::MIN;
        assert_eq!(nans(&case), [false; 12], "{what}");
        for value in [f32::NAN, f32::INFINITY] {
            case.masked = None;
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
