//! ResNets with the parameter names of torchvision's: one for small pictures, and those of torchvision.

use crate::data::ImageBatch;
use burn::module::Module;
use burn::nn::{
    Initializer, Linear, LinearConfig, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::tensor::{Device, Tensor};
use burn_ddp::context::values::whole;
use burn_ddp::{
    dp::ParallelStep,
    layers,
    metric::Classification,
    sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig},
};
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

/// Structure of the network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Network {
    /// Three stages for pictures of about 32 pixels (He et al. 2015, arXiv 1512.03385, section 4.2, with projections).
    #[default]
    Small,
    /// ResNet-18 of torchvision.
    Resnet18,
    /// ResNet-34 of torchvision.
    Resnet34,
    /// ResNet-50 of torchvision, version 1.5: the 3 × 3 convolution of a block has the stride.
    Resnet50,
}

impl Network {
    /// Whether this is [`Network::Small`].
    pub fn is_small(&self) -> bool {
        *self == Network::Small
    }
}

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
    /// Network: small, or one of torchvision for larger pictures and for --weights
    #[arg(long, value_enum, default_value_t, value_name = "NAME", hide_possible_values = true)]
    #[serde(default, skip_serializing_if = "Network::is_small")]
    pub network: Network,
    /// Residual blocks in each of the three stages of the small network; 3 is ResNet-20
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = whole(1..=1000))]
    pub blocks: usize,
    /// Channels of the first stage, doubled in each further stage; 64 for torchvision's networks
    #[arg(
        long, default_value_t = 16, default_value_ifs = [
            ("network", "resnet18", "64"), ("network", "resnet34", "64"), ("network", "resnet50", "64")
        ],
        value_name = "N", value_parser = whole(1..=8192)
    )]
    pub width: usize,
}

/// A convolution, three or four stages of residual blocks, and a linear layer.
#[derive(Module, Debug)]
pub struct ResNet {
    conv1: Conv2d,
    bn1: SyncBatchNorm,
    /// Halves the size before the first stage of torchvision's networks.
    pool: Option<MaxPool2d>,
    layer1: Vec<Block>,
    layer2: Vec<Block>,
    layer3: Vec<Block>,
    /// Empty in the small network.
    layer4: Vec<Block>,
    fc: Linear,
    /// Label smoothing of the training loss.
    pub label_smoothing: f64,
}

impl ResNetConfig {
    /// Creates a network with Burn's default initialisation, which `device.seed` determines.
    pub fn init(&self, device: &Device) -> ResNet {
        let blocks = match self.network {
            Network::Small => [self.blocks, self.blocks, self.blocks, 0],
            Network::Resnet18 => [2, 2, 2, 2],
            Network::Resnet34 | Network::Resnet50 => [3, 4, 6, 3],
        };
        let small = self.network.is_small();
        let [side, stride] = if small { [3, 1] } else { [7, 2] };
        let expansion = if self.network == Network::Resnet50 { 4 } else { 1 };
        let mut from = self.width;
        let mut stage = |number: usize| -> Vec<Block> {
            let block = |index: usize| {
                let stride = if number > 0 && index == 0 { 2 } else { 1 };
                let width = self.width << number;
                let before = std::mem::replace(&mut from, expansion * width);
                Block::new(before, [width, expansion * width], stride, device)
            };
            (0..blocks[number]).map(block).collect()
        };
        ResNet {
            conv1: conv([self.channels, self.width], side, stride, device),
            bn1: norm(self.width, device),
            pool: (!small).then(|| {
                let padding = PaddingConfig2d::Explicit(1, 1, 1, 1);
                MaxPool2dConfig::new([3, 3]).with_strides([2, 2]).with_padding(padding).init()
            }),
            layer1: stage(0),
            layer2: stage(1),
            layer3: stage(2),
            layer4: stage(3),
            fc: LinearConfig::new(from, self.classes).init(device),
            label_smoothing: 0.0,
        }
    }
}

impl ResNet {
    // ANCHOR: freeze
    /// Freezes all layers but the last one, with their running statistics.
    pub fn with_frozen_body(self) -> Self {
        let fc = self.fc.clone();
        Self { fc, ..self.freeze() }
    }
    // ANCHOR_END: freeze

    /// Floating-point operations of forward of a picture with this side: 2 per weight and position of its output.
    pub fn flops(&self, side: usize) -> f64 {
        let (mut products, mut side) = weight_uses(&self.conv1, side);
        if self.pool.is_some() {
            side = side.div_ceil(2);
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            let (own, after) = block.weight_uses(side);
            (products, side) = (products + own, after);
        }
        2.0 * (products + self.fc.weight.shape().num_elements()) as f64
    }

    /// Maps pictures `[batch, channels, side, side]` to logits `[batch, classes]`.
    pub fn forward(&self, pictures: Tensor<4>) -> Tensor<2> {
        let mut x = self.bn1.forward_relu(layers::conv(&self.conv1, pictures));
        if let Some(pool) = &self.pool {
            x = layers::max_pool(pool, x);
        }
        for block in [&self.layer1, &self.layer2, &self.layer3, &self.layer4].into_iter().flatten() {
            x = block.forward(x);
        }
        let [batch, channels, height, width] = x.dims();
        let mean = x.reshape([batch, channels, height * width]).mean_dim(2).reshape([batch, channels]);
        layers::linear(&self.fc, mean)
    }
}

/// Convolutions, added to their input or, if the shape changes, to its projection.
///
/// Two of 3 × 3, or in ResNet-50 one of 3 × 3 between two of 1 × 1.
#[derive(Module, Debug)]
struct Block {
    conv1: Conv2d,
    bn1: SyncBatchNorm,
    conv2: Conv2d,
    bn2: SyncBatchNorm,
    conv3: Option<Conv2d>,
    bn3: Option<SyncBatchNorm>,
    /// A 1 × 1 convolution and BatchNorm.
    downsample: Option<(Conv2d, SyncBatchNorm)>,
}

impl Block {
    /// Creates a block of `from` input channels and `to` output channels. Its 3 × 3 convolutions have `width` channels.
    fn new(from: usize, [width, to]: [usize; 2], stride: usize, device: &Device) -> Self {
        let (bottleneck, projects) = (to != width, stride != 1 || from != to);
        let [side, strides] = if bottleneck { [1, 1] } else { [3, stride] };
        Self {
            conv1: conv([from, width], side, strides, device),
            bn1: norm(width, device),
            conv2: conv([width, width], 3, stride / strides, device),
            bn2: norm(width, device),
            conv3: bottleneck.then(|| conv([width, to], 1, 1, device)),
            bn3: bottleneck.then(|| norm(to, device)),
            downsample: projects.then(|| (conv([from, to], 1, stride, device), norm(to, device))),
        }
    }

    /// [`weight_uses`] of all convolutions.
    fn weight_uses(&self, side: usize) -> (usize, usize) {
        let (first, inner) = weight_uses(&self.conv1, side);
        let (second, after) = weight_uses(&self.conv2, inner);
        let third = self.conv3.as_ref().map_or(0, |conv| weight_uses(conv, after).0);
        let projection = self.downsample.as_ref().map_or(0, |(conv, _)| weight_uses(conv, side).0);
        (first + second + third + projection, after)
    }

    /// Maps `[batch, from, height, width]` to `[batch, to, ⌈height / stride⌉, ⌈width / stride⌉]`.
    fn forward(&self, x: Tensor<4>) -> Tensor<4> {
        let y = layers::conv(&self.conv2, self.bn1.forward_relu(layers::conv(&self.conv1, x.clone())));
        let y = match (&self.conv3, &self.bn3) {
            (Some(conv), Some(norm)) => norm.forward(layers::conv(conv, self.bn2.forward_relu(y))),
            _ => self.bn2.forward(y),
        };
        let shortcut = match &self.downsample {
            Some((conv, norm)) => norm.forward(layers::conv(conv, x)),
            None => x,
        };
        layers::relu(y + shortcut)
    }
}

/// Number of products of a convolution of `side` × `side` positions, and the side of its output.
fn weight_uses(conv: &Conv2d, side: usize) -> (usize, usize) {
    let after = side.div_ceil(conv.stride[0]);
    (conv.weight.shape().num_elements() * after * after, after)
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

burn_ddp::train_steps!(ResNet: ImageBatch => Classification);

impl ParallelStep for ResNet {
    /// Logits `[batch, classes]`.
    type Outputs = Tensor<2>;

    fn forward_part(&self, (pictures, _): ImageBatch) -> Tensor<2> {
        self.forward(pictures)
    }

    fn criterion(&self, logits: Tensor<2>, (_, labels): ImageBatch) -> (Tensor<1>, Classification) {
        Classification::cross_entropy(self.label_smoothing, logits, labels)
    }
}
