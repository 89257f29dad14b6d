//! Runs of the DDP strategy in which ranks differ in one setting.

mod drift;
mod live_recovery;
mod non_finite;
mod overflow;
mod settings;
mod stragglers;

use crate::{
    common,
    reports::{Listen, Reports},
    support::{device, options_with, training},
};
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, Initializer, Linear, LinearConfig,
    loss::{MseLoss, Reduction},
};
use burn::optim::{SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Device, FloatDType, Tensor};
use burn::train::{InferenceStep, Learner, RegressionOutput, TrainOutput, TrainStep};
use burn_ddp_collective::{
    Error, ProcessGroup, StepOptions,
    loader::ShardedLoader,
    precision::{self, Precision},
    strategy::DdpStrategy,
};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

type Ddp = DdpStrategy<LinearModel>;

/// Sets some of the options of a step.
fn with(ddp: Ddp, set: impl FnOnce(&mut StepOptions)) -> Ddp {
    ddp.with_options(options_with(set))
}

/// Linear regression, with an optional BatchNorm before it.
#[derive(Module, Debug)]
struct LinearModel {
    norm: Option<BatchNorm>,
    linear: Linear,
}

/// Points of a line. The loss is multiplied by `factor`; its gradient is NaN if the factor is 0.
#[derive(Clone, Debug)]
struct Points {
    x: Tensor<2>,
    y: Tensor<2>,
    factor: f32,
}

impl LinearModel {
    fn regress(&self, points: Points) -> RegressionOutput {
        let x = match &self.norm {
            Some(norm) => norm.forward(points.x),
            None => points.x,
        };
        let output = self.linear.forward(x).cast(FloatDType::F32);
        let loss = MseLoss::new().forward(output.clone(), points.y.clone(), Reduction::Mean);
        let loss = loss.mul_scalar(points.factor);
        let loss = if points.factor == 0.0 { loss.sqrt() } else { loss };
        RegressionOutput::new(loss, output, points.y)
    }
}

impl TrainStep for LinearModel {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> TrainOutput<RegressionOutput> {
        let output = self.regress(points);
        TrainOutput::new(self, precision::backward(&output.loss), output)
    }
}

impl InferenceStep for LinearModel {
    type Input = Points;
    type Output = RegressionOutput;
    fn step(&self, points: Points) -> RegressionOutput {
        self.regress(points)
    }
}

/// Training settings of one rank.
struct Rank {
    lr: f64,
    momentum: f64,
    batch_size: usize,
    batch_norm: bool,
    precision: Precision,
    /// Factor of the loss, by the number of the batch from 1.
    factor: fn(usize) -> f32,
    epochs: usize,
    /// Folder of burn-train's own checkpointers, if they are used.
    checkpoints: Option<PathBuf>,
}

impl Default for Rank {
    fn default() -> Self {
        let precision = Precision::F32;
        Rank {
            lr: 0.01,
            momentum: 0.0,
            batch_size: 4,
            batch_norm: false,
            precision,
            factor: |_| 1.0,
            epochs: 2,
            checkpoints: None,
        }
    }
}

/// Batches points in the model's computing type.
struct Stack {
    precision: Precision,
    factor: fn(usize) -> f32,
    made: AtomicUsize,
}

impl Batcher<f32, Points> for Stack {
    fn batch(&self, points: Vec<f32>, device: &Device) -> Points {
        let column = |values: Vec<f32>| Tensor::<1>::from_data(&*values, device).unsqueeze_dim::<2>(1);
        let y = column(points.iter().map(|x| 3.0 * x + 1.0).collect());
        let x = match self.precision {
            Precision::F32 => column(points),
            other => column(points).cast(other.dtype()),
        };
        Points { x, y, factor: (self.factor)(self.made.fetch_add(1, Ordering::Relaxed) + 1) }
    }
}

/// Trains on one rank of `group`, with 40 points over all ranks.
fn fit(group: ProcessGroup, rank: Rank, set: impl FnOnce(Ddp) -> Ddp) -> Reports {
    let device = device();
    let Rank { lr, momentum, batch_size, batch_norm, precision, factor, epochs, checkpoints } = rank;
    let world = group.world();
    let load = |precision, factor| {
        let points = InMemDataset::new((0..40u8).map(|i| f32::from(i) / 40.0).collect());
        let stack = Stack { precision, factor, made: AtomicUsize::new(0) };
        Arc::new(ShardedLoader::builder(points, stack).batch_size(batch_size).shuffle(7).build(world))
    };
    // Evaluation uses f32, like the parameters.
    let (train, valid) = (load(precision, factor), load(Precision::F32, |_| 1.0));
    let listen = Arc::new(Listen::default());
    let ddp = Ddp::new(group, &device, train.clone(), valid.clone()).with_observer(listen.clone());
    let norm = batch_norm.then(|| BatchNormConfig::new(1).init(&device));
    let linear = LinearConfig::new(1, 1).with_initializer(Initializer::Zeros).init(&device);
    let model = LinearModel { norm, linear };
    let momentum = (momentum > 0.0).then(|| MomentumConfig::new().with_momentum(momentum));
    let optimizer = SgdConfig::new().with_momentum(momentum).init();
    let folder = checkpoints.clone().unwrap_or_else(|| ".".into());
    let training = training::<LinearModel>(folder, train, valid, epochs);
    let training = if checkpoints.is_some() { training.with_default_checkpointers() } else { training };
    let failure = set(ddp).launch(training, Learner::new(model, optimizer, lr)).err();
    Reports { failure, ..listen.take() }
}

/// Trains on `size` ranks, with settings for each.
fn fit_all(
    size: usize,
    rank: impl Fn(usize) -> Rank + Sync,
    set: impl Fn(usize, Ddp) -> Ddp + Sync,
) -> Vec<Reports> {
    common::world(common::Kind::Thread, size, common::options(), |group| {
        let number = group.rank();
        fit(group, rank(number), |ddp| set(number, ddp))
    })
}

/// The errors of all ranks; every rank must have one.
fn failures(told: &[Reports]) -> Vec<&Error> {
    told.iter().map(|rank| rank.failure.as_ref().expect("a failure on every rank")).collect()
}

#[test]
fn ranks_with_equal_settings_complete_the_run() {
    for batch_norm in [false, true] {
        let told = fit_all(3, |_| Rank { batch_norm, ..Rank::default() }, |_, ddp| ddp);
        assert!(told.iter().all(|rank| rank.failure.is_none() && rank.epochs.len() == 2));
        assert!(told.iter().all(|rank| rank.epochs[1].digest == told[0].epochs[1].digest));
        assert!(told[0].steps.iter().all(|step| step.loss_scale.is_none() && !step.skipped));
        assert_eq!(told[0].epochs[1].valid_samples, 40);
    }
}
