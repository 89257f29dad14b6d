//! Mixed-precision training of a model that contains no code for it.

mod embedding;
mod layers;
mod strategy;
mod sums;
mod wrapper;

use crate::{
    common,
    support::{device, filled, training, worst},
};
use burn::module::{Module, Param};
use burn::nn::{
    Dropout, DropoutConfig, LayerNorm, LayerNormConfig, Linear, LinearConfig,
    conv::{Conv2d, Conv2dConfig},
    loss::CrossEntropyLossConfig,
    pool::{MaxPool2d, MaxPool2dConfig},
};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_ddp_collective::{dp::ParallelStep, metric::Classification, train_steps};

/// The layers of the MNIST network, and a LayerNorm.
#[derive(Module, Debug)]
struct Net {
    conv: Conv2d,
    pool: MaxPool2d,
    dropout: Dropout,
    norm: LayerNorm,
    linear: Linear,
    /// Factor of the logits, `[1]`, which the criterion uses.
    factor: Param<Tensor<1>>,
}

/// Images `[batch, 1, 8, 8]` and labels `[batch]`.
type Batch = (Tensor<4>, Tensor<1, Int>);

impl Net {
    /// Constant initial weights.
    fn new(device: &Device) -> Self {
        let net = Net {
            conv: Conv2dConfig::new([1, 4], [3, 3]).init(device),
            pool: MaxPool2dConfig::new([2, 2]).with_strides([2, 2]).init(),
            dropout: DropoutConfig::new(0.0).init(),
            norm: LayerNormConfig::new(36).init(device),
            linear: LinearConfig::new(36, 3).init(device),
            factor: Param::from_tensor(Tensor::ones([1], device)),
        };
        let mut net = filled(net, |_, i| 0.5 * ((i * i) as f32 * 1.7).sin() + 0.2);
        net.factor = net.factor.map(|factor| factor.ones_like().require_grad());
        net
    }

    /// Maps images to features `[batch, 3]`.
    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let x = burn::tensor::activation::relu(self.conv.forward(images)); // [batch, 4, 6, 6]
        let x = self.dropout.forward(self.pool.forward(x)).flatten(1, 3); // [batch, 36]
        self.linear.forward(self.norm.forward(x))
    }

    /// Logits and mean loss.
    fn loss(&self, features: Tensor<2>, labels: Tensor<1, Int>) -> (Tensor<2>, Tensor<1>) {
        let logits = features * self.factor.val().unsqueeze();
        let loss = CrossEntropyLossConfig::new().init(&logits.device()).forward(logits.clone(), labels);
        (logits, loss)
    }
}

impl ParallelStep for Net {
    type Outputs = Tensor<2>;

    fn forward_part(&self, (images, _): Batch) -> Tensor<2> {
        self.forward(images)
    }

    fn criterion(&self, features: Tensor<2>, (images, labels): Batch) -> (Tensor<1>, Classification) {
        let types = [features.dtype(), self.factor.val().dtype(), images.dtype()];
        assert_eq!(types, [DType::F32; 3], "features, parameters and images of the criterion");
        let (logits, loss) = self.loss(features, labels.clone());
        (loss.clone(), Classification::new(loss, logits, labels))
    }
}

train_steps!(Net: Batch => Classification);

/// Samples from this number on exceed the range of f16.
const BRIGHT: usize = 1_000_000;

/// Noisy images in f32 that are bright on the left, in the middle or on the right, and which of these it is.
fn batch(samples: &[usize], device: &Device) -> Batch {
    let pixel = |sample: usize, place: usize| {
        let noise = (((64 * (sample % BRIGHT) + place) * 7) as f32 * 0.9).sin();
        let scale = if sample < BRIGHT { 1.0 } else { 1e6 };
        scale * (if place % 8 / 3 == sample % 3 { 1.5 } else { 0.0 } + 0.5 * noise)
    };
    let pixels = samples.iter().flat_map(|sample| (0..64).map(|place| pixel(*sample, place)));
    let pixels = TensorData::new(pixels.collect::<Vec<_>>(), [samples.len(), 1, 8, 8]);
    let labels: Vec<i32> = samples.iter().map(|sample| (sample % 3) as i32).collect();
    (Tensor::from_data(pixels, device), Tensor::from_data(&labels[..], device))
}
