//! Recurrent layers and attention compared with Burn's.

use super::tests::{compare, device, random, same_settings};
use super::{attention::*, transformer::*, *};
use crate::tests::{read, results};
use burn::module::Module;
use burn::nn;
use burn::tensor::{Bool, Tensor};
use proptest::prelude::*;

/// Compares LSTMs with Burn's, with and without an initial state.
fn compare_lstms([batch, time, inputs, hidden]: [usize; 4], bias: bool, reverse: bool) {
    let ours = LstmConfig::new(inputs, hidden, bias).with_reverse(reverse);
    let burns = nn::LstmConfig::new(inputs, hidden, bias).with_reverse(reverse);
    same_settings(&ours, &burns);
    let both = (ours.init(&device()), burns.init(&device()));
    let factors = [(); 2].map(|()| random([inputs, hidden]));
    for with_state in [false, true] {
        let state = |x: &Tensor<3>| {
            let [cell, hidden] = factors.clone().map(|factors| initial_state(x, factors));
            with_state.then_some(LstmState::new(cell, hidden))
        };
        // The final states count twice, so that each has a gradient of its own.
        let whole = |(output, LstmState { cell, hidden }): (Tensor<3>, LstmState<2>)| {
            Tensor::cat(vec![output, cell.unsqueeze_dim(1), hidden.unsqueeze_dim(1) * 2.0], 1)
        };
        compare(
            both.clone(),
            random([batch, time, inputs]),
            |m, x| whole(m.forward(x.clone(), state(&x))),
            |m, x| whole(m.forward(x.clone(), state(&x))),
        );
    }
}

/// A state `[batch, hidden]` that depends on `x`, so that its gradient is part of that of `x`.
///
/// Its values are around 1 for any number of inputs: `results` multiplies gradients by the sines of outputs, which for
/// large outputs amplify differences in rounding.
fn initial_state(x: &Tensor<3>, factors: Tensor<2>) -> Tensor<2> {
    let inputs = x.dims()[2] as f64;
    x.clone().mean_dim(1).squeeze_dim::<2>(1).matmul(factors) / inputs.sqrt()
}

/// Compares GRUs with Burn's, with and without an initial state.
fn compare_grus([batch, time, inputs, hidden]: [usize; 4], bias: bool, reset_after: bool) {
    let ours = GruConfig::new(inputs, hidden, bias).with_reset_after(reset_after);
    let burns = nn::GruConfig::new(inputs, hidden, bias).with_reset_after(reset_after);
    same_settings(&ours, &burns);
    let both = (ours.init(&device()), burns.init(&device()));
    let factors = random([inputs, hidden]);
    for with_state in [false, true] {
        let state = |x: &Tensor<3>| with_state.then(|| initial_state(x, factors.clone()));
        compare(
            both.clone(),
            random([batch, time, inputs]),
            |m, x| m.forward(x.clone(), state(&x)),
            |m, x| m.forward(x.clone(), state(&x)),
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn recurrent_layers_equal_those_of_burn(
        sizes in [1..20_usize, 1..6, 1..10, 1..24],
        (bias, reverse) in any::<(bool, bool)>(),
    ) {
        compare_lstms(sizes, bias, reverse);
        compare_grus(sizes, bias, true);
    }
}

#[test]
fn large_batches_and_the_other_reset_gate_equal_those_of_burn() {
    // Several parts of the matrix pass over the rows, and the last rows overlap others.
    compare_lstms([9, 2, 300, 70], true, false);
    compare_grus([9, 2, 300, 70], true, true);
    compare_lstms([70, 2, 5, 19], false, false);
    compare_grus([70, 2, 5, 19], false, true);
    compare_grus([2, 3, 5, 19], true, false);
}

#[test]
fn lstms_with_other_settings_equal_those_of_burn() {
    let ours = LstmConfig::new(4, 6, true);
    let burns = nn::LstmConfig::new(4, 6, true);
    let cases = [
        (ours.clone().with_batch_first(false), burns.clone().with_batch_first(false)),
        (ours.clone().with_clip(Some(0.1)), burns.clone().with_clip(Some(0.1))),
        (ours.with_input_forget(true), burns.with_input_forget(true)),
    ];
    for (ours, burns) in cases {
        let both = (ours.init(&device()), burns.init(&device()));
        compare(both, random([5, 3, 4]), |m, x| m.forward(x, None).0, |m, x| m.forward(x, None).0);
    }
}

#[test]
fn grus_in_both_directions_equal_those_of_burn() {
    for (batch_first, clip) in [(true, None), (false, None), (true, Some(0.1))] {
        let ours = BiGruConfig::new(4, 6, true).with_batch_first(batch_first).with_clip(clip);
        let burns = nn::BiGruConfig::new(4, 6, true).with_batch_first(batch_first).with_clip(clip);
        same_settings(&ours, &burns);
        let both = (ours.init(&device()), burns.init(&device()));
        for state in [None, Some(random([2, 5, 6]))] {
            let whole = |(output, state): (Tensor<3>, Tensor<3>)| {
                Tensor::cat([output, state * 2.0].map(|part| part.flatten::<1>(0, 2)).to_vec(), 0)
            };
            let x = random(if batch_first { [5, 3, 4] } else { [3, 5, 4] });
            compare(
                both.clone(),
                x,
                |m, x| whole(m.forward(x, state.clone())),
                |m, x| whole(m.forward(x, state.clone())),
            );
        }
    }
}

#[test]
fn lstms_in_both_directions_equal_those_of_burn() {
    for (batch_first, clip) in [(true, None), (false, None), (true, Some(0.1))] {
        let ours = BiLstmConfig::new(4, 6, true).with_batch_first(batch_first).with_clip(clip);
        let burns = nn::BiLstmConfig::new(4, 6, true).with_batch_first(batch_first).with_clip(clip);
        same_settings(&ours, &burns);
        let both = (ours.init(&device()), burns.init(&device()));
        for state in [None, Some(LstmState::new(random([2, 5, 6]), random([2, 5, 6])))] {
            let whole = |(output, LstmState { cell, hidden }): (Tensor<3>, LstmState<3>)| {
                Tensor::cat([output, cell, hidden * 2.0].map(|part| part.flatten::<1>(0, 2)).to_vec(), 0)
            };
            let x = random(if batch_first { [5, 3, 4] } else { [3, 5, 4] });
            compare(
                both.clone(),
                x,
                |m, x| whole(m.forward(x, state.clone())),
                |m, x| whole(m.forward(x, state.clone())),
            );
        }
    }
}

/// A pseudorandom mask, of which no row hides everything.
fn mask<const D: usize>(shape: [usize; D]) -> Tensor<D, Bool> {
    random(shape).greater_elem(0.4)
}

#[test]
fn attention_equals_that_of_burn() {
    for (queries, keys) in [(9, 9), (5, 70), (1, 3)] {
        for masks in 0..4 {
            let ours = MultiHeadAttentionConfig::new(24, 3).with_dropout(0.0).with_key_bias(false);
            let burns =
                nn::attention::MultiHeadAttentionConfig::new(24, 3).with_dropout(0.0).with_key_bias(false);
            same_settings(&ours, &burns);
            let both = (ours.init(&device()), burns.init(&device()));
            let (key, value) = (random([4, keys, 24]), random([4, keys, 24]));
            let (pad, attn) = (mask([4, keys]), mask([4, queries, keys]));
            // The input of `$module`, and its context and weights in one tensor.
            macro_rules! forward {
                ($($module:ident)::+) => {
                    |m, x: Tensor<3>| {
                        let mut input = $($module)::+::MhaInput::new(x, key.clone(), value.clone());
                        if masks & 1 != 0 {
                            input = input.mask_pad(pad.clone());
                        }
                        if masks & 2 != 0 {
                            input = input.mask_attn(attn.clone());
                        }
                        let output = m.forward(input);
                        Tensor::cat(vec![output.context.flatten::<1>(0, 2), output.weights.flatten(0, 3)], 0)
                    }
                };
            }
            compare(both, random([4, queries, 24]), forward!(super::attention), forward!(nn::attention));
        }
    }
}

#[test]
fn encoders_equal_those_of_burn() {
    for (norm_first, activation) in
        [(false, nn::activation::ActivationConfig::Gelu), (true, nn::activation::ActivationConfig::Relu)]
    {
        macro_rules! config {
            ($($module:ident)::+) => {
                $($module)::+::TransformerEncoderConfig::new(16, 40, 4, 2)
                    .with_dropout(0.0)
                    .with_norm_first(norm_first)
                    .with_layer_norm_eps(1e-3)
                    .with_activation(activation.clone())
            };
        }
        let (ours, burns) = (config!(super::transformer), config!(nn::transformer));
        same_settings(&ours, &burns);
        let pad = mask([3, 11]);
        compare(
            (ours.init(&device()), burns.init(&device())),
            random([3, 11, 16]),
            |m, x| m.forward(TransformerEncoderInput::new(x).mask_pad(pad.clone())),
            |m, x| m.forward(nn::transformer::TransformerEncoderInput::new(x).mask_pad(pad.clone())),
        );
    }
}

#[test]
fn decoders_equal_those_of_burn() {
    for norm_first in [false, true] {
        macro_rules! config {
            ($($module:ident)::+) => {
                $($module)::+::TransformerDecoderConfig::new(16, 40, 4, 2)
                    .with_dropout(0.0)
                    .with_norm_first(norm_first)
                    .with_layer_norm_eps(1e-3)
            };
        }
        let (ours, burns) = (config!(super::transformer), config!(nn::transformer));
        same_settings(&ours, &burns);
        let (memory, pad, memory_pad) = (random([3, 9, 16]), mask([3, 11]), mask([3, 9]));
        let (attn, memory_attn) = (mask([3, 11, 11]), mask([3, 11, 9]));
        macro_rules! forward {
            ($($module:ident)::+) => {
                |m, x: Tensor<3>| {
                    let input = $($module)::+::TransformerDecoderInput::new(x, memory.clone());
                    let input = input.target_mask_pad(pad.clone()).target_mask_attn(attn.clone());
                    m.forward(input.memory_mask_pad(memory_pad.clone()).memory_mask_attn(memory_attn.clone()))
                }
            };
        }
        let both = (ours.init(&device()), burns.init(&device()));
        compare(both, random([3, 11, 16]), forward!(super::transformer), forward!(nn::transformer));
    }
}

/// The rows of the weights still add up to 1 on average, and the gradient uses the weights that are returned.
#[test]
fn attention_drops_weights() {
    let attention = MultiHeadAttentionConfig::new(8, 2).with_dropout(0.5).init(&device());
    let x = random([2, 64, 8]);
    let output = attention.forward(MhaInput::self_attn(x.clone()));
    let weights = read(output.weights);
    let dropped = weights.iter().filter(|&&weight| weight == 0.0).count() as f64 / weights.len() as f64;
    assert!((dropped - 0.5).abs() < 0.03, "{dropped}");
    let mean = weights.iter().sum::<f32>() / (2.0 * 2.0 * 64.0);
    assert!((mean - 1.0).abs() < 0.1, "{mean}");
    let frozen = attention.freeze();
    let forward = |m: &MultiHeadAttention, x| m.forward(MhaInput::self_attn(x)).context;
    assert!(results(&frozen, &x, forward) == results(&frozen, &x, forward));
}

#[test]
fn one_step_with_a_cache_equals_the_whole_sequence() {
    let encoder = TransformerEncoderConfig::new(8, 16, 2, 1).with_dropout(0.0).with_norm_first(true);
    let encoder = encoder.init(&device());
    let x = random([1, 5, 8]);
    let mut cache = encoder.new_autoregressive_cache();
    let mut last = None;
    for length in 1..=5 {
        let input = TransformerEncoderInput::new(x.clone().narrow(1, 0, length))
            .mask_attn(generate_autoregressive_mask(1, length, &device()));
        last = Some(encoder.forward_autoregressive_inference(input, &mut cache));
    }
    let mask = generate_autoregressive_mask(1, 5, &device());
    let whole = read(encoder.forward(TransformerEncoderInput::new(x).mask_attn(mask)));
    let last = read(last.expect("five steps"));
    assert!(whole.iter().zip(&last).all(|(a, b)| (a - b).abs() < 1e-5), "{whole:?} is not {last:?}");
}
