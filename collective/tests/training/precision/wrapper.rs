//! `DistributedDataParallel`, `DataParallel` and `Reducer` in 16 bits.

use super::{
    BRIGHT, Batch, Net, batch,
    common::{Kind, options, world},
    device, worst,
};
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{DType, Device, FloatDType, Tensor};
use burn_ddp_collective::{
    DataParallel, DistributedDataParallel, ParallelModule, ProcessGroup, StepOptions, World,
    dp::{DataParallelConfig, Scatter},
    gradient::{Reducer, ReducerOptions},
    loader::ShardedBatch,
    module_state,
    precision::Precision,
};

type Loss = fn(&Net, Batch) -> Tensor<1>;

/// A loss of the forward pass's type.
fn plain(net: &Net, (images, labels): Batch) -> Tensor<1> {
    net.loss(net.forward(images), labels).1
}

/// A loss whose softmax is computed in f32.
fn cast(net: &Net, (images, labels): Batch) -> Tensor<1> {
    let features = net.forward(images) * net.factor.val().unsqueeze();
    let logits = features.cast(FloatDType::F32);
    burn::nn::loss::CrossEntropyLossConfig::new().init(&logits.device()).forward(logits, labels)
}

fn choose(precision: Precision) -> ReducerOptions {
    ReducerOptions { precision, ..ReducerOptions::default() }
}

fn step_options(precision: Precision) -> StepOptions {
    StepOptions { grad_accum_steps: 2, reducer: choose(precision), ..StepOptions::default() }
}

/// Losses of 30 steps of 12 images over all ranks, half of them accumulated.
fn train(model: &mut ParallelModule<Net>, world: World, loss: Loss) -> Vec<f32> {
    let mut optimizer = SgdConfig::new().init();
    let (mine, mut losses) = (6 / world.size, Vec::new());
    for half in 0..60 {
        let first = 6 * half + mine * world.rank;
        let item = batch(&(first..first + mine).collect::<Vec<_>>(), &device());
        let batch = ShardedBatch { item, samples: mine, global_samples: 6, last: false };
        let (value, gradients) = model.backward(batch, loss).expect("backward");
        assert_eq!(gradients.is_accumulated(), half % 2 == 0);
        if let Some(grads) = gradients.get().filter(|_| !gradients.is_skipped()) {
            let net = model.module();
            let types = [
                grads.get::<2>(net.linear.weight.id).expect("a gradient").dtype(),
                grads.get::<1>(net.factor.id).expect("a gradient").dtype(),
            ];
            assert_eq!(types, [DType::F32; 2]);
        }
        model.step(&mut optimizer, 0.2, gradients).expect("step");
        if value.is_synchronised() {
            losses.push(value.mean().expect("the host") as f32);
        }
    }
    let entries = module_state::entries(model.module()).expect("read");
    assert!(entries.iter().all(|entry| entry.data.dtype() == DType::F32));
    losses
}

fn ranks(size: usize, precision: Precision, loss: Loss) -> Vec<f32> {
    let results = world(Kind::Thread, size, options(), |group: ProcessGroup| {
        let net = Net::new(&device());
        let model = DistributedDataParallel::with_options(net, &group, step_options(precision));
        let mut model = model.expect("a model");
        let losses = train(&mut model, group.world(), loss);
        assert_eq!(model.fallback(), None);
        losses
    });
    assert!(results.iter().all(|losses| *losses == results[0]));
    results.into_iter().next().expect("a rank")
}

fn replicas(count: usize, precision: Precision, loss: Loss) -> Vec<f32> {
    let config = DataParallelConfig::new(&vec![Device::flex(); count]);
    let model = DataParallel::with_options(Net::new(&device()), config, step_options(precision));
    train(&mut model.expect("a model"), World { rank: 0, size: 1 }, loss)
}

#[test]
fn mixed_precision_follows_f32_and_gradients_and_parameters_stay_f32() {
    let wanted = ranks(1, Precision::F32, plain);
    assert!(wanted[29] < 0.5 * wanted[0], "{wanted:?}");
    assert_eq!(ranks(1, Precision::F32, cast), wanted, "a cast to f32 changes nothing in f32");
    for (name, loss, precision, tolerance) in [
        ("of the type", plain as Loss, Precision::F32, 1e-4),
        ("of the type", plain, Precision::Bf16, 0.05),
        ("in f32", cast, Precision::Bf16, 0.02),
    ] {
        for (way, losses) in [
            ("1 rank", ranks(1, precision, loss)),
            ("2 ranks", ranks(2, precision, loss)),
            ("2 replicas", replicas(2, precision, loss)),
        ] {
            let difference = worst(&losses, &wanted);
            println!("{precision}, loss {name}, {way}: largest difference of the loss {difference}");
            assert!(difference < tolerance, "{precision} {way}: {difference}\n{losses:?}\n{wanted:?}");
            assert!(precision == Precision::F32 || losses != wanted, "{precision} {way}");
        }
    }
    // The first steps overflow until the loss scale has fallen, so that the curve is a little behind.
    for loss in [plain as Loss, cast] {
        let [one, two] = [1, 2].map(|size| ranks(size, Precision::F16, loss));
        for losses in [one, two, replicas(2, Precision::F16, loss)] {
            let difference = worst(&losses[20..], &wanted[20..]);
            assert!(difference < 0.01, "f16: {difference}\n{losses:?}\n{wanted:?}");
        }
    }
}

#[test]
fn an_overflow_on_one_rank_skips_the_step_on_all_and_halves_the_scale() {
    for size in [1, 2] {
        world(Kind::Thread, size, options(), |group: ProcessGroup| {
            let net = Net::new(&device());
            let options = StepOptions {
                reducer: choose(Precision::F16),
                allow_non_finite: true,
                ..StepOptions::default()
            };
            let mut model = DistributedDataParallel::with_options(net, &group, options).expect("a model");
            let mut step = |first: usize| {
                let item = batch(&[first, first + 1, first + 2], &device());
                let batch = ShardedBatch { item, samples: 3, global_samples: 3 * size, last: false };
                let (_, gradients) = model.backward(batch, cast).expect("backward");
                let grads = gradients.get().expect("a step").len();
                (grads, gradients.is_skipped(), model.state().loss_scale.expect("f16").0)
            };
            let first = if group.rank() == size - 1 { BRIGHT } else { 0 };
            assert_eq!(step(first), (0, true, 32768.0));
            assert_eq!(step(0), (7, false, 32768.0));
        });
    }
}

#[test]
fn a_model_that_does_not_scale_its_loss_is_an_error() {
    let group = ProcessGroup::solo();
    let net = Net::new(&device());
    let mut reducer = Reducer::new(&net, &group, choose(Precision::F16)).expect("a reducer");
    let mut step = reducer.step(3, 3);
    let watched = step.watch(&net);
    let batch = batch(&[0, 1, 2], &device()).cast(FloatDType::F16);
    let grads = step.scope(|| cast(&watched, batch).backward());
    let grads = GradientsParams::from_grads(grads, &watched);
    let error = step.finish(grads, &net, &mut vec![]).expect_err("not scaled").to_string();
    for way in ["Trainer::data_parallel()", "DdpStrategy::with_parallel_step()", "precision::backward(&loss)"]
    {
        assert!(error.contains(way), "{error}");
    }
}
