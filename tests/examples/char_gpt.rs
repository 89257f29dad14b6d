//! The language-model example: network, optimizer, text and generation.

use burn::module::Module;
use burn::nn::LinearConfig;
use burn::optim::GradientsParams;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_ddp::{
    ProcessGroup,
    data::Windows,
    dp::{Outputs, ParallelStep},
    gradient::{Reducer, ReducerOptions},
    precision::Precision,
    run::tensor_io::softmax,
    sampler::mix,
};
use char_gpt::{
    generate::Sampling,
    model::{Gpt, GptConfig},
    text::{Text, Vocabulary},
    train::{AdamArgs, GptArgs},
};
use clap::Parser;
use std::fs;

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

const LOGITS: [f32; 4] = [1.0, 3.0, 2.0, -1.0];

fn counts(sampling: Sampling) -> [usize; 4] {
    let mut counts = [0; 4];
    (0..20_000).for_each(|step| counts[sampling.draw(&LOGITS, mix(5, step)) as usize] += 1);
    counts
}

#[test]
fn frequencies_are_the_probabilities() {
    let sampling = Sampling { length: 0, temperature: 1.0, top_k: None };
    for (count, probability) in counts(sampling).into_iter().zip(softmax(&LOGITS)) {
        assert!((count as f64 / 20_000.0 - probability).abs() < 0.01, "{count} {probability}");
    }
    let two = counts(Sampling { top_k: Some(2), ..sampling });
    assert!(two[0] == 0 && two[3] == 0 && two[2] > 0, "{two:?}");
    let cold = counts(Sampling { temperature: 0.0, ..sampling });
    assert_eq!(cold, [0, 20_000, 0, 0]);
    let nearly_cold = counts(Sampling { temperature: 1e-300, ..sampling });
    assert_eq!(nearly_cold, [0, 20_000, 0, 0]);
}

#[test]
fn characters_are_numbered_in_ascending_order() {
    let vocabulary = Vocabulary::from_text("hällo");
    assert_eq!((vocabulary.characters(), vocabulary.len()), ("hloä".into(), 4));
    assert_eq!(vocabulary.encode("oh"), Ok(vec![2, 0]));
    assert_eq!(vocabulary.encode("oh!"), Err('!'));
    assert_eq!(vocabulary.decode(&[0, 3, 1, 1, 2]), "hällo");
}

#[test]
fn the_parts_are_contiguous() {
    let folder = tempfile::tempdir().expect("temporary folder");
    let (path, text) = (folder.path().join("text.txt"), ('a'..='z').cycle().take(1000).collect::<String>());
    fs::write(&path, &text).expect("written");
    let load = |splits, block_size| Text::load(Some(&path), splits, block_size);
    let parts = load([0.2, 0.1], 8).expect("long enough");
    assert_eq!([&parts.train, &parts.valid, &parts.test].map(|part| part.len()), [720, 180, 100]);
    let joined = [&parts.train[..], &parts.valid, &parts.test].concat();
    assert_eq!(parts.vocabulary.decode(&joined), text);
    assert!(load([0.0, 0.1], 8).is_ok_and(|parts| parts.valid.is_empty()));
    for block_size in [100, 500] {
        assert!(load([0.2, 0.1], block_size).is_err());
    }
}

#[test]
fn the_book_is_a_text() {
    let book = Text::load(None, [0.1, 0.1], 64).expect("long enough");
    assert!(book.train.len() > 100_000 && book.vocabulary.encode("all-reduce").is_ok());
}

#[test]
fn the_defaults_are_valid_and_can_be_overridden() {
    let trainer = |flags: &[&str]| {
        let line = ["program"].iter().chain(flags);
        GptArgs::try_parse_from(line).unwrap_or_else(|error| panic!("{flags:?}: {error}")).trainer
    };
    let defaults = trainer(&[]);
    assert_eq!((defaults.lr, defaults.gradients.clip_grad_norm), (0.001, Some(1.0)));
    assert!(defaults.check().is_ok());
    assert_eq!(trainer(&["--lr", "0.5"]).lr, 0.5);
}

#[test]
fn only_matrices_are_decayed() {
    let device = Device::flex().autodiff();
    let before = LinearConfig::new(3, 2).init(&device);
    let [weight, bias] =
        [before.weight.val().flatten::<1>(0, 1), before.bias.as_ref().expect("a bias").val()];
    // A gradient of zero leaves the decay.
    let loss = before.forward(Tensor::<2>::zeros([1, 3], &device)).mul_scalar(0.0).sum();
    let gradients = GradientsParams::from_grads(loss.backward(), &before);
    let adam = AdamArgs { weight_decay: 0.5, beta1: 0.9, beta2: 0.99 };
    let after = adam.init().step(0.1, before, gradients);
    let close = |ours: Tensor<1>, theirs: Tensor<1>| {
        assert!((ours - theirs).abs().max().into_scalar::<f32>() < 1e-6);
    };
    close(after.weight.val().flatten::<1>(0, 1), weight * 0.95);
    close(after.bias.expect("a bias").val(), bias);
}
