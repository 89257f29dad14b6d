//! Losses.

use super::drop_in::drop_in;
use crate::layers;
pub use burn::nn::loss::*;
use burn::tensor::{Device, Int, Tensor};

drop_in! {
    /// Cross-entropy of classes.
    CrossEntropyLoss: burn::nn::loss::CrossEntropyLoss;
    CrossEntropyLossConfig: burn::nn::loss::CrossEntropyLossConfig,
    new(),
    with(
        with_pad_tokens: Option<Vec<usize>>,
        with_weights: Option<Vec<f32>>,
        with_smoothing: Option<f32>,
        with_logits: bool
    ),
    init(device: &Device)
}

impl CrossEntropyLoss {
    /// Creates the loss; targets equal to `pad_index` do not count.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        Self(burn::nn::loss::CrossEntropyLoss::new(pad_index, device))
    }

    /// Mean loss `[1]` of logits `[batch, classes]` and targets `[batch]`; see [`layers::cross_entropy`].
    pub fn forward(&self, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
        layers::cross_entropy(&self.0, logits, targets)
    }
}
