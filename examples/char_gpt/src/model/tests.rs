//! Tests of the network.

use super::*;
use burn::tensor::TensorData;
use burn_ddp::{
    ProcessGroup,
    dp::Outputs,
    gradient::{Reducer, ReducerOptions},
    precision::Precision,
};

const SMALL: GptConfig = GptConfig {
    characters: 11,
    block_size: 6,
    layers: 2,
    heads: 2,
    width: 8,
    dropout: 0.0,
    tie_weights: false,
};

fn network(tie_weights: bool) -> Gpt {
    let device = Device::flex().autodiff();
    device.seed(3);
    GptConfig { tie_weights, ..SMALL }.init(&device)
}

fn logits(net: &Gpt, characters: &[i32]) -> Vec<f32> {
    let data = TensorData::new(characters.to_vec(), [1, characters.len()]);
    let input = Tensor::from_data(data, &Device::flex().autodiff());
    net.forward(input).into_data().try_to_vec().expect("f32")
}

#[test]
fn a_position_sees_earlier_ones_only() {
    let net = network(false);
    let [first, other] = [[1, 2, 3, 4, 5, 6], [1, 2, 3, 9, 9, 9]].map(|text| logits(&net, &text));
    assert_eq!(first[..3 * 11], other[..3 * 11]);
    assert_ne!(first[3 * 11..], other[3 * 11..]);
    // A shorter text gives the same logits.
    let short = logits(&net, &[1, 2, 3]);
    assert!(short.iter().zip(&first).all(|(a, b)| (a - b).abs() < 1e-6));
}

#[test]
fn tied_weights_are_one_parameter_with_both_gradients() {
    let (tied, untied) = (network(true), network(false));
    assert_eq!(untied.num_params() - tied.num_params(), 11 * 8);
    let device = Device::flex().autodiff();
    let window = || {
        let data = TensorData::new(vec![1, 2, 3], [1, 3]);
        (Tensor::from_data(data.clone(), &device), Tensor::from_data(data, &device))
    };
    let gradient = |net: &Gpt| {
        let (loss, _) = net.criterion(net.forward(window().0), window());
        let gradient = net.wte.weight.val().grad(&loss.backward()).expect("a gradient");
        gradient.into_data().try_to_vec::<f32>().expect("f32")
    };
    // Characters that are not in the window have a gradient through the output layer only.
    let row = |gradient: &[f32]| gradient[9 * 8..10 * 8].iter().any(|value| *value != 0.0);
    assert!(row(&gradient(&tied)) && !row(&gradient(&untied)));
}

#[test]
fn the_initial_loss_is_that_of_guessing() {
    let device = Device::flex().autodiff();
    let data = TensorData::new(vec![1, 2, 3, 4, 5, 6], [2, 3]);
    let characters: Tensor<2, Int> = Tensor::from_data(data, &device);
    let net = network(false);
    let (loss, _) = net.criterion(net.forward(characters.clone()), (characters.clone(), characters));
    assert!((f64::from(loss.into_scalar::<f32>()) - 11f64.ln()).abs() < 0.1);
}

#[test]
fn gradients_of_many_characters_in_16_bits_are_those_of_f32() {
    let device = Device::flex().autodiff();
    device.seed(3);
    // 32,768 characters, most of which are the same.
    let (windows, time) = (512, 64);
    let text = |from: usize| {
        let text = (from..from + windows * time).map(|i| (i * i % 7 * (i % 3) % 5) as i32);
        Tensor::from_data(TensorData::new(text.collect::<Vec<_>>(), [windows, time]), &device)
    };
    let batch: Windows = (text(0), text(1));
    for tie_weights in [false, true] {
        let config = GptConfig { characters: 5, block_size: time, layers: 1, tie_weights, ..SMALL };
        let net = config.init(&device);
        let gradients = |precision| {
            let options = ReducerOptions { precision, ..ReducerOptions::default() };
            let reducer = Reducer::new(&net, &ProcessGroup::solo(), options).expect("a reducer");
            let logits = reducer.local(&net).forward_part(batch.clone()).to_f32();
            let (loss, _) = net.criterion(logits, batch.clone());
            // The initial loss scale, so that gradients are in the range of f16.
            let gradients = loss.mul_scalar(65536.0).backward();
            [&net.wte, &net.wpe].map(|layer| layer.weight.val().grad(&gradients).expect("a gradient"))
        };
        let norm = |x: Tensor<2>| x.powi_scalar(2).sum().sqrt().into_scalar::<f32>();
        let exact = gradients(Precision::F32);
        for (precision, tolerance) in [(Precision::Bf16, 0.05), (Precision::F16, 0.01)] {
            for (name, (ours, exact)) in
                ["wte", "wpe"].iter().zip(gradients(precision).into_iter().zip(&exact))
            {
                let ratio = norm(ours.clone()) / norm(exact.clone());
                let error = norm(ours - exact.clone()) / norm(exact.clone());
                println!("{precision} {name}, tied {tie_weights}: norm {ratio}, error {error}");
                assert!(
                    (ratio - 1.0).abs() < 0.01 && error < tolerance,
                    "{precision} {name}: {ratio}, {error}"
                );
            }
        }
    }
}
