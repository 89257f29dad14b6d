//! ResNet for small pictures, with the parameter names of torchvision's.

use crate::data::ImageBatch;
use burn::module::Module;
use burn::nn::{
    Initializer, Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
    loss::{CrossEntropyLoss, CrossEntropyLossConfig},
};
use burn::tensor::{Device, Tensor, activation::relu};
use burn::train::{InferenceStep, TrainOutput, TrainStep};
use burn_ddp::context::values::up_to;
use burn_ddp::layers;
use burn_ddp::{
    data_parallel::ParallelStep,
    metric::Classification,
    sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig},
};
use clap::Args;
use serde::{Deserialize, Serialize};

/// Sizes of the network.
#[derive(Args, Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[command(about = None, long_about = None, next_help_heading = "Model")]
pub struct ResNetConfig {
    /// Channels of a picture.
    #[arg(skip)]
    pub channels: usize,
    #[arg(skip)]
    #[serde(skip)]
    pub classes: usize,
    /// Residual blocks in each of the three stages; 3 is ResNet-20
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = up_to(1000))]
    pub blocks: usize,
    /// Channels of the first stage; the others have twice and four times as many
    #[arg(long, default_value_t = 16, value_name = "N", value_parser = up_to(8192))]
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

/// Two 3 × 3 convolutions, added to their input or, if the shape changes, to its projection.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: SyncBatchNorm,
    conv2: Conv2d,
    bn2: SyncBatchNorm,
    /// A 1 × 1 convolution and BatchNorm.
    downsample: Option<(Conv2d, SyncBatchNorm)>,
}

impl Block {
    /// Creates a block from one number of channels to another.
    fn new([from, to]: [usize; 2], stride: usize, device: &Device) -> Self {
        let projects = stride != 1 || from != to;
        Self {
            conv1: conv([from, to], 3, stride, device),
            bn1: norm(to, device),
            conv2: conv([to, to], 3, 1, device),
            bn2: norm(to, device),
            downsample: projects.then(|| (conv([from, to], 1, stride, device), norm(to, device))),
        }
    }

    /// Maps `[batch, from, height, width]` to `[batch, to, ⌈height / stride⌉, ⌈width / stride⌉]`.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = self.bn1.forward_relu(layers::conv(&self.conv1, x.clone()));
        let y = self.bn2.forward(layers::conv(&self.conv2, y));
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(layers::conv(conv, x)),
            None => x,
        };
        relu(y + shortcut)
    }
}

/// A convolution without bias that keeps the size at stride 1. Its weights are drawn as in He et al. 2015.
fn conv(channels: [usize; 2], side: usize, stride: usize, device: &Device) -> Conv2d {
    let padding = side / 2;
    Conv2dConfig::new(channels, [side, side])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: 2.0_f64.sqrt(), fan_out_only: true })
        .init(device)
}

/// BatchNorm as PyTorch computes it. Its statistics are per rank until it is converted by `--sync-bn`.
fn norm(channels: usize, device: &Device) -> SyncBatchNorm {
    SyncBatchNormConfig::new(channels).with_running_variance(RunningVariance::Unbiased).init(device)
}

impl TrainStep for ResNet {
    type Input = ImageBatch;
    type Output = Classification;

    fn step(&self, (pictures, labels): ImageBatch) -> TrainOutput<Classification> {
        let (loss, output) = Classification::from_logits(&self.training_loss, self.forward(pictures), labels);
        TrainOutput::new(self, loss.backward(), output)
    }
}

impl InferenceStep for ResNet {
    type Input = ImageBatch;
    type Output = Classification;

    fn step(&self, (pictures, labels): ImageBatch) -> Classification {
        Classification::from_logits(&self.loss, self.forward(pictures), labels).1
    }
}

impl ParallelStep for ResNet {
    /// Logits `[batch, classes]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, (pictures, _): ImageBatch) -> Tensor<2> {
        self.forward(pictures)
    }

    fn criterion(&self, logits: Tensor<2>, (_, labels): ImageBatch) -> (Tensor<1>, Classification) {
        Classification::from_logits(&self.training_loss, logits, labels)
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
