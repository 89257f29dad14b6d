//! The residual block of two convolutions.

use burn::module::Module;
use burn::nn::{
    Initializer, PaddingConfig2d,
    conv::{Conv2d, Conv2dConfig},
};
use burn::tensor::{Device, Tensor, activation::relu};
use collective::sync_batch_norm::{RunningVariance, SyncBatchNorm, SyncBatchNormConfig};
use kernels::layers;

/// Two 3 × 3 convolutions, added to their input or, if the shape changes, to its projection.
#[derive(Module, Debug)]
pub struct Block {
    conv1: Conv2d,
    bn1: SyncBatchNorm,
    conv2: Conv2d,
    bn2: SyncBatchNorm,
    /// A 1 × 1 convolution and BatchNorm.
    downsample: Option<(Conv2d, SyncBatchNorm)>,
}

impl Block {
    /// Creates a block from one number of channels to another.
    pub fn new([from, to]: [usize; 2], stride: usize, device: &Device) -> Self {
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
    pub fn forward(&self, x: Tensor<4>) -> Tensor<4> {
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
pub fn conv(channels: [usize; 2], side: usize, stride: usize, device: &Device) -> Conv2d {
    let padding = side / 2;
    Conv2dConfig::new(channels, [side, side])
        .with_stride([stride, stride])
        .with_padding(PaddingConfig2d::Explicit(padding, padding, padding, padding))
        .with_bias(false)
        .with_initializer(Initializer::KaimingNormal { gain: 2.0_f64.sqrt(), fan_out_only: true })
        .init(device)
}

/// BatchNorm as PyTorch computes it. Its statistics are per rank until it is converted by `--sync-bn`.
pub fn norm(channels: usize, device: &Device) -> SyncBatchNorm {
    SyncBatchNormConfig::new(channels).with_running_variance(RunningVariance::Unbiased).init(device)
}
