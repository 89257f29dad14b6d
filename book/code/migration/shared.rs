//! Coming from PyTorch: images, network and optimizer of the programs.
//!
//! The images follow a rule, so that nothing is downloaded.

use burn::data::{dataloader::batcher::Batcher, dataset::InMemDataset};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig, loss::CrossEntropyLossConfig};
use burn::optim::{ModuleOptimizer, SgdConfig, momentum::MomentumConfig};
use burn::tensor::{Device, Int, Tensor, TensorData, activation::relu};
use burn_ddp::sync_batch_norm::{
    SyncBatchNorm as BatchNorm, SyncBatchNormConfig as BatchNormConfig,
};
use std::ops::Range;

/// An image of 28 × 28 pixels and its class.
pub type Sample = (Vec<f32>, i32);
/// Images `[batch, 1, 28, 28]` and classes `[batch]`.
pub type Batch = (Tensor<4>, Tensor<1, Int>);

/// The samples of a range: noisy stripes.
pub fn digits(range: Range<u64>) -> InMemDataset<Sample> {
    let value = |index: u64, pixel: u64| {
        let stripe = (pixel / 28 * (index % 10) + pixel % 28) % 10;
        let noise = (index * 784 + pixel) * 2_654_435_761 % (1 << 32);
        let noise = (noise ^ (noise >> 15)) * 73_244_475 % (1 << 32);
        0.3 * stripe as f32 / 10.0 + 0.7 * noise as f32 / 2f32.powi(32)
    };
    let sample = |index| {
        (
            (0..28 * 28).map(|pixel| value(index, pixel)).collect(),
            (index % 10) as i32,
        )
    };
    InMemDataset::new(range.map(sample).collect())
}

/// Copies samples into tensors.
pub struct Stack;
impl Batcher<Sample, Batch> for Stack {
    fn batch(&self, samples: Vec<Sample>, device: &Device) -> Batch {
        let count = samples.len();
        let (images, classes): (Vec<_>, Vec<_>) = samples.into_iter().unzip();
        let images = TensorData::new(images.concat(), [count, 1, 28, 28]);
        (
            Tensor::from_data(images, device),
            Tensor::from_data(TensorData::new(classes, [count]), device),
        )
    }
}

/// Two linear layers, with BatchNorm between them if `norm` is set.
#[derive(Module, Debug)]
pub struct Net {
    hidden: Linear,
    norm: Option<BatchNorm>,
    output: Linear,
}

impl Net {
    pub fn new(norm: bool, device: &Device) -> Self {
        Self {
            hidden: LinearConfig::new(28 * 28, 32).init(device),
            norm: norm.then(|| BatchNormConfig::new(32).init(device)),
            output: LinearConfig::new(32, 10).init(device),
        }
    }

    /// Maps images `[batch, 1, 28, 28]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = self.hidden.forward(images.flatten(1, 3));
        let hidden = match &self.norm {
            Some(norm) => norm.forward(hidden),
            None => hidden,
        };
        self.output.forward(relu(hidden))
    }

    /// Computes the mean loss `[1]` of a batch.
    pub fn loss(&self, (images, classes): Batch) -> Tensor<1> {
        let logits = self.forward(images);
        CrossEntropyLossConfig::new()
            .init(&logits.device())
            .forward(logits, classes)
    }
}

/// Creates PyTorch's `SGD(momentum=0.9)`. Burn's dampening is 0.1 by default.
pub fn sgd() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.9).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}
