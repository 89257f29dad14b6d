//! The networks for MNIST, with PyTorch's parameter names, their training step, and their optimizer.

use crate::batch::MnistBatch;
use anyhow::{Result, bail};
use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::optim::ModuleOptimizer;
use burn::tensor::{Device, Tensor};
use burn_ddp::run::weights::load;
use burn_ddp::{
    dp::ParallelStep,
    layers,
    metric::Classification,
    optim::Sgd,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig},
};
use clap::ValueEnum;
use serde::Serialize;
use std::path::Path;

/// Which network is trained.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// 3 × 3 convolutions with 32 and 64 filters, as in pytorch/examples: 1,199,882 parameters
    #[default]
    Cnn,
    /// 5 × 5 convolutions with 16 and 32 filters, each pooled, similar to LeNet-5: 80,202 parameters
    Lenet,
}

/// Options of the network.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct NetConfig {
    pub network: Network,
    /// Whether BatchNorm follows each convolution. Its statistics are per rank until it is converted.
    pub batch_norm: bool,
    /// Probabilities of the two dropout layers; pytorch/examples uses 0.25 and 0.5.
    pub dropout: [f64; 2],
    /// Label smoothing of the training loss.
    pub label_smoothing: f64,
}

/// Two convolutions and two linear layers.
#[derive(Module, Debug)]
pub struct Net {
    pub conv1: Conv2d,
    bn1: Option<SyncBatchNorm>,
    pub pool1: Option<MaxPool2d>,
    pub conv2: Conv2d,
    bn2: Option<SyncBatchNorm>,
    pub pool: MaxPool2d,
    dropout1: Dropout,
    pub fc1: Linear,
    dropout2: Dropout,
    pub fc2: Linear,
    label_smoothing: f64,
}

impl NetConfig {
    /// Floating-point operations of forward and backward of an image: 2 per weight and position of its output in forward,
    /// twice as many in backward.
    pub fn flops(&self) -> f64 {
        let products = match self.network {
            Network::Cnn => 26 * 26 * 32 * 9 + 24 * 24 * 64 * 32 * 9 + 9216 * 128,
            Network::Lenet => 24 * 24 * 16 * 25 + 8 * 8 * 32 * 16 * 25 + 512 * 128,
        };
        6.0 * f64::from(products + 128 * 10)
    }

    /// Creates a network with Burn's default initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> Net {
        let (kernel, [first, second], features) = match self.network {
            Network::Cnn => (3, [32, 64], 64 * 12 * 12),
            Network::Lenet => (5, [16, 32], 32 * 4 * 4),
        };
        let conv = |channels| {
            Conv2dConfig::new(channels, [kernel; 2]).with_padding(PaddingConfig2d::Valid).init(device)
        };
        let norm = |features| self.batch_norm.then(|| SyncBatchNormConfig::new(features).init(device));
        let pool = || MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init();
        Net {
            conv1: conv([1, first]),
            bn1: norm(first),
            pool1: (self.network == Network::Lenet).then(pool),
            conv2: conv([first, second]),
            bn2: norm(second),
            pool: pool(),
            dropout1: DropoutConfig::new(self.dropout[0]).init(),
            fc1: LinearConfig::new(features, 128).init(device),
            dropout2: DropoutConfig::new(self.dropout[1]).init(),
            fc2: LinearConfig::new(128, 10).init(device),
            label_smoothing: self.label_smoothing,
        }
    }
}

impl Net {
    /// Loads the network of a run or file onto `device`.
    ///
    /// It is the network of the file, with BatchNorm if the file has it.
    ///
    /// # Errors
    /// If the file cannot be read, or does not contain exactly such a network.
    pub fn open(path: &Path, device: &Device) -> Result<Self> {
        let candidates = Network::value_variants().iter().flat_map(|network| {
            [false, true].map(|batch_norm| NetConfig {
                network: *network,
                batch_norm,
                ..NetConfig::default()
            })
        });
        let mut mismatches = Vec::new();
        for config in candidates {
            let loaded = load(config.init(device), path)?;
            if loaded.mismatches.is_empty() {
                return Ok(loaded.model);
            }
            mismatches.push(loaded.mismatches);
        }
        let nearest = mismatches.into_iter().min_by_key(Vec::len).unwrap_or_default();
        bail!("{} does not fit the MNIST network: {}", path.display(), nearest.join("; "))
    }

    // ANCHOR: forward
    /// Maps images `[batch, 1, 28, 28]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        // The sizes are those of `Network::Cnn`.
        let x = block(&self.conv1, self.bn1.as_ref(), self.pool1.as_ref(), images); // [batch, 32, 26, 26]
        let x = block(&self.conv2, self.bn2.as_ref(), Some(&self.pool), x); // [batch, 64, 12, 12]
        let x = layers::dropout(&self.dropout1, x).flatten(1, 3); // [batch, 9216]
        let x = layers::relu(layers::linear(&self.fc1, x)); // [batch, 128]
        layers::linear(&self.fc2, layers::dropout(&self.dropout2, x)) // [batch, 10]
    }
    // ANCHOR_END: forward
}

/// A convolution with its optional BatchNorm, ReLU, and optional pooling.
fn block(conv: &Conv2d, norm: Option<&SyncBatchNorm>, pool: Option<&MaxPool2d>, x: Tensor<4>) -> Tensor<4> {
    match (norm, pool) {
        (None, None) => layers::conv_relu(conv, x),
        (None, Some(pool)) => layers::conv_relu_max_pool(conv, pool, x),
        (Some(norm), None) => norm.forward_relu(layers::conv(conv, x)),
        (Some(norm), Some(pool)) => norm.forward_relu_max_pool(pool, layers::conv(conv, x)),
    }
}

burn_ddp::train_steps!(Net: MnistBatch => Classification);

impl ParallelStep for Net {
    /// Logits `[batch, 10]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, part: MnistBatch) -> Tensor<2> {
        self.forward(part.images)
    }

    fn criterion(&self, logits: Tensor<2>, batch: MnistBatch) -> (Tensor<1>, Classification) {
        Classification::cross_entropy(self.label_smoothing, logits, batch.labels)
    }
}

// ANCHOR: sgd
/// PyTorch's SGD as a Burn optimizer, without dampening.
pub fn sgd(momentum: f64, nesterov: bool, weight_decay: f64) -> ModuleOptimizer {
    Sgd { momentum, dampening: 0.0, nesterov, weight_decay }.into()
}
// ANCHOR_END: sgd
