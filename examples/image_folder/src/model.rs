//! ResNet for small pictures, with the parameter names of torchvision's.

mod block;

use crate::batch::ImageBatch;
use block::{Block, conv, norm};
use burn::module::Module;
use burn::nn::{
    Linear, LinearConfig,
    conv::Conv2d,
    loss::{CrossEntropyLoss, CrossEntropyLossConfig},
};
use burn::tensor::{Device, Int, Tensor};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use collective::{data_parallel::ParallelStep, metric::Classification, sync_batch_norm::SyncBatchNorm};
use kernels::layers;
use serde::{Deserialize, Serialize};

/// Sizes of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResNetConfig {
    /// Channels of a picture.
    pub channels: usize,
    #[serde(default)]
    pub classes: usize,
    /// Residual blocks in each of the three stages.
    pub blocks: usize,
    /// Channels of the first stage.
    pub width: usize,
}

/// A 3 × 3 convolution, three stages of residual blocks, and a linear layer (He et al. 2015, arXiv 1512.03385,
/// section 4.2, with projections). It has 6 × `blocks` + 2 layers.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: SyncBatchNorm,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    fc: Linear,
    loss: CrossEntropyLoss,
    /// The training loss, with label smoothing if enabled.
    training_loss: CrossEntropyLoss,
}

impl ResNetConfig {
    /// Creates a network with Burn's default initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> ResNet {
        let stage = |from: usize, to: usize, stride: usize| -> Vec<Block> {
            let first = Block::new([from, to], stride, device);
            let others = (1..self.blocks).map(|_| Block::new([to, to], 1, device));
            std::iter::once(first).chain(others).collect()
        };
        let width = self.width;
        ResNet {
            conv1: conv([self.channels, width], 3, 1, device),
            bn1: norm(width, device),
            layer1: stage(width, width, 1),
            layer2: stage(width, 2 * width, 2),
            layer3: stage(2 * width, 4 * width, 2),
            fc: LinearConfig::new(4 * width, self.classes).init(device),
            loss: CrossEntropyLossConfig::new().init(device),
            training_loss: CrossEntropyLossConfig::new().init(device),
        }
    }
}

impl ResNet {
    /// Adds label smoothing to the training loss, as PyTorch's `label_smoothing`.
    pub fn with_label_smoothing(mut self, smoothing: f64) -> Self {
        self.training_loss.smoothing = (smoothing > 0.0).then_some(smoothing as f32);
        self
    }

    /// Maps pictures `[batch, channels, side, side]` to logits `[batch, classes]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = self.bn1.forward_relu(layers::conv(&self.conv1, pictures));
        for block in self.layer1.iter().chain(&self.layer2).chain(&self.layer3) {
            x = block.forward(x);
        }
        let [batch, channels, height, width] = x.dims();
        let mean = x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels]);
        layers::linear(&self.fc, mean)
    }
}

/// The mean loss `[1]` over the batch, and the output for metrics.
fn judge(loss: &CrossEntropyLoss, logits: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<1>, Classification) {
    let loss = loss.forward(logits.clone(), labels.clone());
    (loss.clone(), Classification::new(loss, logits, labels))
}

impl TrainStep for ResNet {
    type Input = ImageBatch;
    type Output = Classification;

    fn step(&self, (pictures, labels): ImageBatch) -> TrainOutput<Classification> {
        let (loss, output) = judge(&self.training_loss, self.forward(pictures), labels);
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for ResNet {
    type Input = ImageBatch;
    type Output = Classification;

    fn step(&self, (pictures, labels): ImageBatch) -> Classification {
        judge(&self.loss, self.forward(pictures), labels).1
    }
}

impl ParallelStep for ResNet {
    /// Logits `[batch, classes]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, (pictures, _): ImageBatch) -> Tensor<2> {
        self.forward(pictures)
    }

    fn criterion(&self, logits: Tensor<2>, (_, labels): ImageBatch) -> (Tensor<1>, Classification) {
        judge(&self.training_loss, logits, labels)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resnet_20_has_the_published_number_of_parameters() {
        let device = Device::flex();
        // 0.27 million in table 6 of the paper; 272,474 with projections. Burn also counts the running statistics.
        let net = ResNetConfig { channels: 3, classes: 10, blocks: 3, width: 16 }.init(&device);
        let statistics = 2 * (16 + 6 * 16 + 7 * 32 + 7 * 64);
        assert_eq!(net.num_params(), 272_474 + statistics);
        let logits = net.forward(Tensor::zeros([2, 3, 33, 33], &device));
        assert_eq!(logits.dims(), [2, 10]);
    }
}
