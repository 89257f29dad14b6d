//! `DistributedDataParallel` and `DataParallel` compared with a plain training loop on one device.

mod failures;
mod frozen;
mod local_sgd;
mod sharded;
mod strategy;
mod trajectories;

use crate::{
    common,
    support::{device, filled, options_with, parameters, training},
};
use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::optim::{ModuleOptimizer, SgdConfig, lr_scheduler::module_lr_scheduler::ModuleLearningRate};
use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData, activation::relu};
use burn_ddp_collective::{
    Loss, ParallelModule, Result, World,
    loader::{DistributedLoader, ShardedBatch, ShardedLoader},
    precision::Precision,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig},
};

/// Two layers with an optional BatchNorm between them.
#[derive(Module, Debug)]
pub struct Net {
    first: Linear,
    norm: Option<SyncBatchNorm>,
    last: Linear,
}

impl Net {
    /// Constant initial weights.
    pub fn new(norm: bool) -> Self {
        let device = device();
        let net = Net {
            first: LinearConfig::new(3, 8).init(&device),
            norm: norm.then(|| SyncBatchNormConfig::new(8).init(&device)),
            last: LinearConfig::new(8, 1).init(&device),
        };
        let trainable = |i: usize| 0.6 * ((i * i + 3 * i) as f32 * 1.3).sin() + 0.1;
        filled(net, |entry, i| if entry.trainable { trainable(i) } else { 1.0 })
    }

    pub fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        let x = self.first.forward(x);
        let x = self.norm.as_ref().map_or(x.clone(), |norm| norm.forward(x));
        self.last.forward(relu(x))
    }

    /// The mean loss over samples `[batch, 4]`: three inputs and the target.
    pub fn loss(&self, samples: Tensor<2>) -> Tensor<1> {
        let (x, y) = (samples.clone().narrow(1, 0, 3), samples.narrow(1, 3, 1));
        (self.forward(x).cast(FloatDType::F32) - y.cast(FloatDType::F32)).powi_scalar(2).mean()
    }
}

/// Batches samples into a tensor `[batch, 4]` in the model's computing type.
pub struct Stack(pub Precision);

impl Batcher<[f32; 4], Tensor<2>> for Stack {
    fn batch(&self, samples: Vec<[f32; 4]>, device: &Device) -> Tensor<2> {
        let data = TensorData::new(samples.concat(), [samples.len(), 4]);
        Tensor::from_data(data, (device, DType::from(self.0.dtype())))
    }
}

/// Global batches of 12 of `count` samples, in the same order for every world size.
pub fn loader(world: World, count: usize, precision: Precision) -> ShardedLoader<[f32; 4], Tensor<2>> {
    let sample = |i: usize| {
        let [a, b, c] = [0.37, 0.91, 1.73].map(|step| (i as f32 * step).sin());
        [a, b, c, a * b - 0.5 * c]
    };
    let samples = InMemDataset::new((0..count).map(sample).collect());
    ShardedLoader::builder(samples, Stack(precision)).batch_size(12 / world.size).shuffle(5).build(world)
}

pub fn optimizer() -> ModuleOptimizer {
    SgdConfig::new().init()
}

/// Makes the steps of an epoch, with the learning rate that `rate` returns for each. Returns the losses of all batches.
pub fn epoch<R: Into<ModuleLearningRate>>(
    model: &mut ParallelModule<Net>,
    optimizer: &mut ModuleOptimizer,
    loader: &ShardedLoader<[f32; 4], Tensor<2>>,
    number: usize,
    mut rate: impl FnMut() -> R,
) -> Vec<Loss> {
    let step = |batch: Result<ShardedBatch<_>>| {
        let (loss, gradients) = model.backward(batch.expect("in memory"), Net::loss).expect("backward");
        model.step(optimizer, rate(), gradients).expect("step");
        loss
    };
    loader.epoch(number, 0, &device()).map(step).collect()
}

/// The mean losses of all steps of two epochs, and the final parameters.
pub fn train(
    model: &mut ParallelModule<Net>,
    world: World,
    count: usize,
    precision: Precision,
) -> (Vec<f64>, Vec<f32>) {
    let (mut optimizer, loader) = (optimizer(), loader(world, count, precision));
    let losses = (1..=2).flat_map(|number| epoch(model, &mut optimizer, &loader, number, || 0.1));
    let steps = losses.filter(Loss::is_synchronised);
    let means = steps.map(|loss| loss.mean().expect("the host")).collect();
    (means, parameters(model.module()))
}

pub fn assert_close(what: &str, a: &[f64], b: &[f64], tolerance: f64) {
    assert_eq!(a.len(), b.len(), "{what}");
    let worst = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(worst <= tolerance, "{what}: {worst}\n{a:?}\n{b:?}");
}
