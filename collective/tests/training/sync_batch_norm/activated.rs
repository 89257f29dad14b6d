//! ReLU and max-pooling in the same passes, compared with separate layers.

use super::batches::{Case, apart, device, tensor, values};
use crate::common::{Kind, options, world};
use burn::module::{Flag, Module, Param};
use burn::nn::pool::{MaxPool2d, MaxPool2dConfig};
use burn::tensor::{DType, Tensor, activation::relu};
use burn_ddp_collective::{ProcessGroup, sync_batch_norm::SyncBatchNorm};
use proptest::{collection::vec, prelude::*};

type Layers<'a> = &'a (dyn Fn(&SyncBatchNorm, Tensor<4>) -> Tensor<4> + Sync);

/// Output, gradients of input, gamma and beta, and running statistics of every step.
fn train(case: &Case, layers: Layers, group: &ProcessGroup) -> Vec<[Vec<f64>; 6]> {
    let device = device();
    let sync = case.module(&device).with_group(group);
    let start: usize = case.shards[..group.rank()].iter().sum();
    let rows = start..start + case.shards[group.rank()];
    let row: usize = case.shape[1..].iter().product();
    let shape = [&[rows.len()], &case.shape[1..]].concat();
    let step = |x: &[f64]| {
        let x = tensor::<4>(&x[rows.start * row..rows.end * row], &shape, case.dtype, &device).require_grad();
        let y = layers(&sync, x.clone());
        // Every output has another gradient.
        let grads = (y.clone() * (y.clone().detach() + 0.3).sin()).sum().backward();
        [
            values(y),
            values(x.grad(&grads).expect("a gradient")),
            values(sync.norm.gamma.grad(&grads).expect("a gradient")),
            values(sync.norm.beta.grad(&grads).expect("a gradient")),
            values(sync.norm.running_mean.value_sync()),
            values(sync.norm.running_var.value_sync()),
        ]
    };
    case.steps.iter().map(|batch| step(&batch.x)).collect()
}

fn assert_same(case: &Case, ours: Layers, theirs: Layers) {
    let run = |layers: Layers| {
        world(Kind::Thread, case.shards.len(), options(), |group| train(case, layers, &group))
    };
    for (rank, (ours, theirs)) in run(ours).iter().zip(run(theirs)).enumerate() {
        for (step, (ours, theirs)) in ours.iter().zip(&theirs).enumerate() {
            for (part, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
                let off = apart(ours, theirs);
                assert!(off < 1e-4, "part {part} of step {step} on rank {rank} is off by {off}: {case:?}");
            }
        }
    }
}

/// Compares the layers in the same passes, without and with pooling, with separate ones.
fn assert_fused(case: &Case, pool: &MaxPool2d) {
    assert_same(case, &|norm, x| norm.forward_relu(x), &|norm, x| relu(norm.forward(x)));
    assert_same(case, &|norm, x| norm.forward_relu_max_pool(pool, x), &|norm, x| {
        pool.forward(relu(norm.forward(x)))
    });
}

fn pool(kernel: usize, stride: usize) -> MaxPool2d {
    MaxPool2dConfig::new([kernel, kernel]).with_strides([stride, stride]).init()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    /// The sum of all shards has enough values that gradients do not cancel.
    #[test]
    fn values_gradients_and_statistics_equal_those_of_separate_layers(
        seed: u64,
        shards in vec(0usize..5, 1..4).prop_filter("few samples", |shards| shards.iter().sum::<usize>() > 1),
        channels in 1usize..5,
        size in [2usize..7, 2..7],
        kernel in 1usize..3,
    ) {
        let case = Case::random(seed, &shards, &[channels, size[0], size[1]], 2);
        let case = Case { dtype: DType::F32, ..case };
        assert_fused(&case, &pool(kernel, kernel));
    }
}

#[test]
fn other_types_and_overlapping_windows_are_computed_by_separate_layers() {
    let case = Case::random(4, &[3, 2], &[2, 6, 6], 2);
    for dtype in [DType::F32, DType::F64] {
        assert_fused(&Case { dtype, ..case.clone() }, &pool(3, 1));
    }
}

#[test]
fn frozen_modules_use_the_running_statistics() {
    let case = Case { dtype: DType::F32, ..Case::random(6, &[4], &[2, 4, 4], 1) };
    let frozen = case.module(&device()).freeze();
    let x = tensor::<4>(&case.steps[0].x, &case.shape, DType::F32, &device());
    assert_eq!(values(frozen.forward_relu(x.clone())), values(relu(frozen.forward(x.clone()))));
    let pooled = pool(2, 2).forward(relu(frozen.forward(x.clone())));
    assert_eq!(values(frozen.forward_relu_max_pool(&pool(2, 2), x)), values(pooled));
    assert_eq!(values(frozen.norm.running_mean.value_sync()), [0.0; 2]);
}

#[test]
fn running_statistics_give_the_values_and_gradients_of_burns_layer() {
    let case = Case { dtype: DType::F32, ..Case::random(7, &[5], &[3, 4, 7], 1) };
    let mut sync = case.module(&device());
    case.train(&sync, 0..5, &device());
    sync.norm.training = Param::initialized(sync.norm.training.id, Flag::new(false));
    let results = |layer: &dyn Fn(Tensor<4>) -> Tensor<4>| {
        let x = tensor::<4>(&case.steps[0].x, &case.shape, DType::F32, &device()).require_grad();
        let y = layer(x.clone());
        let grads = (y.clone() * (y.clone().detach() + 0.3).sin()).sum().backward();
        let [gamma, beta] = [&sync.norm.gamma, &sync.norm.beta]
            .map(|parameter| values(parameter.grad(&grads).expect("a gradient")));
        [values(y), values(x.grad(&grads).expect("a gradient")), gamma, beta]
    };
    let theirs = results(&|x| sync.norm.forward(x));
    for (part, (ours, theirs)) in results(&|x| sync.forward(x)).iter().zip(&theirs).enumerate() {
        let off = apart(ours, theirs);
        assert!(off < 1e-5, "part {part} is off by {off}");
    }
}
