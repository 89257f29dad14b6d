//! Mixed-precision training.
#![cfg(feature = "burn")]

mod common;

use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    conv::{Conv2d, Conv2dConfig},
    loss::CrossEntropyLossConfig,
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor, TensorData};
use collective::{
    DistributedDataParallel, ProcessGroup, StepOptions,
    gradient::{Reducer, ReducerOptions},
    loader::ShardedBatch,
    module_state,
    precision::Precision,
};
use common::{Kind, options, world};

/// The layers of the MNIST network, and a LayerNorm.
#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    pool: MaxPool2d,
    dropout: Dropout,
    norm: LayerNorm,
    linear: Linear,
}

impl Net {
    /// Constant initial weights.
    fn new(device: &Device) -> Self {
        let net = Net {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.0).init(),
            norm: LayerNormConfig::new(36).init(device),
            linear: LinearConfig::new(36, 3).init(device),
        };
        let data = module_state::entries(&net).expect("read").into_iter().map(|entry| {
            let shape = entry.data.shape().clone();
            let values: Vec<f32> =
                (0..shape.num_elements()).map(|i| 0.5 * ((i * i) as f32 * 1.7).sin() + 0.2).collect();
            TensorData::new(values, shape)
        });
        module_state::overwrite(net.clone(), data.collect())
    }

    /// Maps images of the computing type to logits in f32.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = burn::tensor::activation::relu(self.conv.forward(images)); // [batch, 4, 6, 6]
        let x = self.dropout.forward(self.pool.forward(x)).flatten(1, 3); // [batch, 36]
        self.linear.forward(self.norm.forward(x)).cast(FloatDType::F32)
    }

    /// Mean loss.
    fn loss(&self, images: Tensor<4>) -> Tensor<1> {
        let [batch, ..] = images.dims();
        let labels = Tensor::<1, Int>::from_data(
            TensorData::new((0..batch as i32).map(|i| i % 3).collect::<Vec<_>>(), [batch]),
            &images.device(),
        );
        CrossEntropyLossConfig::new().init(&images.device()).forward(self.forward(images), labels)
    }
}

/// Noisy images that are bright on the left, in the middle or on the right.
fn images(first: usize, count: usize, scale: f32, precision: Precision) -> Tensor<4> {
    let pixel = |i: usize| {
        let (sample, place) = (first + i / 64, i % 64);
        let noise = (((64 * first + i) * 7) as f32 * 0.9).sin();
        scale * (if place % 8 / 3 == sample % 3 { 1.5 } else { 0.0 } + 0.5 * noise)
    };
    let device = Device::flex().autodiff();
    let pixels = TensorData::new((0..count * 64).map(pixel).collect::<Vec<_>>(), [count, 1, 8, 8]);
    Tensor::from_data(pixels, (&device, DType::from(precision.dtype())))
}

fn choose(precision: Precision) -> ReducerOptions {
    ReducerOptions { precision, ..ReducerOptions::default() }
}

/// Losses of 30 steps of 12 images over all ranks, half of them accumulated, and the parameters' types.
fn train(group: &ProcessGroup, precision: Precision) -> (Vec<f32>, Vec<DType>) {
    let options = StepOptions { grad_accum_steps: 2, reducer: choose(precision), ..StepOptions::default() };
    let net = Net::new(&Device::flex().autodiff());
    let mut model = DistributedDataParallel::with_options(net, group, options).expect("a model");
    let mut optimizer = SgdConfig::new().init();
    let (mine, mut losses) = (6 / group.world_size(), Vec::new());
    for half in 0..60 {
        let item = images(6 * half + mine * group.rank(), mine, 1.0, precision);
        let batch = ShardedBatch { item, samples: mine, global_samples: 6, last: false };
        let (loss, gradients) = model.backward(batch, Net::loss).expect("backward");
        assert_eq!(gradients.is_accumulated(), half % 2 == 0);
        model.step(&mut optimizer, 0.2, gradients).expect("step");
        if loss.is_synchronised() {
            losses.push(loss.mean().expect("the host") as f32);
        }
    }
    assert_eq!(model.fallback(), None);
    let entries = module_state::entries(model.module()).expect("read");
    (losses, entries.iter().map(|entry| entry.data.dtype()).collect())
}

#[test]
fn mixed_precision_follows_f32_and_parameters_stay_f32() {
    let run = |size, precision| {
        let results = world(Kind::Thread, size, options(), |group| train(&group, precision));
        assert!(results.iter().all(|result| *result == results[0]));
        results[0].clone()
    };
    let (wanted, _) = run(1, Precision::F32);
    assert!(wanted[29] < 0.5 * wanted[0], "{wanted:?}");
    for (precision, tolerance) in [(Precision::F32, 1e-4), (Precision::F16, 0.02), (Precision::Bf16, 0.1)] {
        for size in [1, 2] {
            let (losses, types) = run(size, precision);
            let worst = losses.iter().zip(&wanted).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            println!("{precision} over {size} rank(s): largest difference of the loss {worst}");
            assert!(worst < tolerance, "{precision} over {size}: {worst}\n{losses:?}\n{wanted:?}");
            assert!(types.iter().all(|dtype| *dtype == DType::F32));
        }
    }
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all_and_halves_the_scale() {
    for size in [1, 2] {
        world(Kind::Thread, size, options(), |group: ProcessGroup| {
            let net = Net::new(&Device::flex().autodiff());
            let options = StepOptions {
                reducer: choose(Precision::F16),
                allow_non_finite: true,
                ..StepOptions::default()
            };
            let mut model = DistributedDataParallel::with_options(net, &group, options).expect("a model");
            let mut step = |scale: f32| {
                let item = images(0, 3, scale, Precision::F16);
                let batch = ShardedBatch { item, samples: 3, global_samples: 3 * size, last: false };
                let (_, gradients) = model.backward(batch, Net::loss).expect("backward");
                let grads = gradients.get().expect("a step").len();
                (grads, gradients.is_skipped(), model.state().loss_scale.expect("f16").0)
            };
            // The last rank's pixels exceed the range of f16.
            let scale = if group.rank() == size - 1 { 1e6 } else { 1.0 };
            assert_eq!(step(scale), (0, true, 32768.0));
            assert_eq!(step(1.0), (6, false, 32768.0));
        });
    }
}

#[test]
fn a_model_that_does_not_scale_its_loss_is_an_error() {
    let group = ProcessGroup::solo();
    let net = Net::new(&Device::flex().autodiff());
    let mut reducer = Reducer::new(&net, &group, choose(Precision::F16)).expect("a reducer");
    let mut step = reducer.step(&net, 3, 3).expect("step");
    let watched = step.watch(&net);
    let grads = step.scope(|| watched.loss(images(0, 3, 1.0, Precision::F16)).backward());
    let grads = GradientsParams::from_grads(grads, &watched);
    let error = step.finish(grads, &net, &mut vec![]).expect_err("not scaled").to_string();
    assert!(error.contains("precision::backward"), "{error}");
}
