//! The MNIST network of pytorch/examples, with PyTorch's parameter names.

use crate::batch::MnistBatch;
use burn::module::Module;
use burn::nn::{
    Dropout, DropoutConfig, Linear, LinearConfig, PaddingConfig2d, Relu,
    conv::{Conv2d, Conv2dConfig},
    loss::{CrossEntropyLoss, CrossEntropyLossConfig},
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::tensor::{Device, Int, Tensor};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use collective::{
    metric::Classification,
    sync_batch_norm::{SyncBatchNorm, SyncBatchNormConfig},
};
use kernels::layers;

/// Options of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetConfig {
    /// Whether BatchNorm follows each convolution. Its statistics are per rank until it is converted.
    pub batch_norm: bool,
    /// Probabilities of the two dropout layers; pytorch/examples uses 0.25 and 0.5.
    pub dropout: [f64; 2],
}

/// Two convolutions and two linear layers; 1,199,882 parameters without BatchNorm.
#[derive(Module, Debug)]
pub struct Net {
    conv1: Conv2d,
    bn1: Option<SyncBatchNorm>,
    conv2: Conv2d,
    bn2: Option<SyncBatchNorm>,
    pool: MaxPool2d,
    dropout1: Dropout,
    fc1: Linear,
    dropout2: Dropout,
    fc2: Linear,
    relu: Relu,
    loss: CrossEntropyLoss,
    /// The training loss, with label smoothing if enabled.
    training_loss: CrossEntropyLoss,
}

impl NetConfig {
    /// Creates a network with Burn's default initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> Net {
        let conv =
            |channels| Conv2dConfig::new(channels, [3, 3]).with_padding(PaddingConfig2d::Valid).init(device);
        let norm = |features| self.batch_norm.then(|| SyncBatchNormConfig::new(features).init(device));
        Net {
            conv1: conv([1, 32]),
            bn1: norm(32),
            conv2: conv([32, 64]),
            bn2: norm(64),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout1: DropoutConfig::new(self.dropout[0]).init(),
            fc1: LinearConfig::new(9216, 128).init(device),
            dropout2: DropoutConfig::new(self.dropout[1]).init(),
            fc2: LinearConfig::new(128, 10).init(device),
            relu: Relu::new(),
            loss: CrossEntropyLossConfig::new().init(device),
            training_loss: CrossEntropyLossConfig::new().init(device),
        }
    }
}

impl Net {
    /// Adds label smoothing to the training loss, as PyTorch's `label_smoothing`.
    ///
    /// A fraction `smoothing` of each label is distributed over all classes (Szegedy et al. 2015, arXiv 1512.00567).
    /// The test loss does not change.
    pub fn with_label_smoothing(mut self, smoothing: f64) -> Self {
        self.training_loss.smoothing = (smoothing > 0.0).then_some(smoothing as f32);
        self
    }

    // ANCHOR: forward
    /// Maps images `[batch, 1, 28, 28]` to logits `[batch, 10]`.
    pub fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = match &self.bn1 {
            Some(norm) => norm.forward_relu(layers::conv(&self.conv1, images)),
            None => layers::conv_relu(&self.conv1, images),
        }; // [batch, 32, 26, 26]
        let x = match &self.bn2 {
            Some(norm) => norm.forward_relu_max_pool(&self.pool, layers::conv(&self.conv2, x)),
            None => layers::conv_relu_max_pool(&self.conv2, &self.pool, x),
        }; // [batch, 64, 12, 12]
        let x = layers::dropout(&self.dropout1, x).flatten(1, 3); // [batch, 9216]
        let x = self.relu.forward(layers::linear(&self.fc1, x)); // [batch, 128]
        layers::linear(&self.fc2, layers::dropout(&self.dropout2, x)) // [batch, 10]
    }
    // ANCHOR_END: forward

    /// Computes the mean training loss `[1]`, and the output for metrics.
    ///
    /// `logits` are `[batch, 10]`, `labels` `[batch]`.
    pub fn judge(&self, logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Classification) {
        judge(&self.training_loss, logits, labels)
    }
}

/// Computes the mean loss `[1]` over the batch, and the output for metrics.
fn judge(loss: &CrossEntropyLoss, logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Classification) {
    let loss = loss.forward(logits.clone(), labels.clone());
    (loss.clone(), Classification::new(loss, logits, labels))
}

impl TrainStep for Net {
    type Input = MnistBatch;
    type Output = Classification;

    fn step(&self, batch: MnistBatch) -> TrainOutput<Classification> {
        let (loss, output) = self.judge(self.forward(batch.images), batch.labels);
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for Net {
    type Input = MnistBatch;
    type Output = Classification;

    fn step(&self, batch: MnistBatch) -> Classification {
        judge(&self.loss, self.forward(batch.images), batch.labels).1
    }
}
