//! Losses.

use super::drop_in::drop_in;
use crate::layers;
use burn::module::Module;
pub use burn::nn::loss::*;
use burn::tensor::{Device, Int, Tensor};

drop_in! {
    /// Cross-entropy of classes.
    CrossEntropyLoss, CrossEntropyLossConfig of loss;
    new(),
    with(
        with_pad_tokens: Option<Vec<usize>>,
        with_weights: Option<Vec<f32>>,
        with_smoothing: Option<f32>,
        with_logits: bool
    ),
    init(device: &Device),
    /// Mean loss `[1]` of logits `[batch, classes]` and targets `[batch]`; see [`layers::cross_entropy`].
    forward(logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> = layers::cross_entropy
}

impl CrossEntropyLoss {
    /// Creates the loss; targets equal to `pad_index` do not count.
    pub fn new(pad_index: Option<usize>, device: &Device) -> Self {
        Self(burn::nn::loss::CrossEntropyLoss::new(pad_index, device))
    }
}

/// Mean squared error.
#[derive(Module, Debug, Default)]
pub struct MseLoss;

impl MseLoss {
    /// Creates the loss.
    pub fn new() -> Self {
        Self
    }

    /// Loss `[1]` of predictions and targets of one shape.
    pub fn forward<const D: usize>(
        &self,
        logits: Tensor<D>,
        targets: Tensor<D>,
        reduction: Reduction,
    ) -> Tensor<1> {
        layers::mse_loss(logits, targets, reduction)
    }

    /// Squared errors, in the shape of the predictions.
    pub fn forward_no_reduction<const D: usize>(&self, logits: Tensor<D>, targets: Tensor<D>) -> Tensor<D> {
        burn::nn::loss::MseLoss.forward_no_reduction(logits, targets)
    }
}

drop_in! {
    /// Half the square of differences up to δ, and beyond linear (Huber 1964).
    HuberLoss, HuberLossConfig of loss;
    new(delta: f32),
    with(),
    init(),
    /// Loss `[1]` of predictions and targets of one shape.
    forward<D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>
        = layers::huber_loss
}

drop_in! {
    /// Huber's loss divided by β.
    SmoothL1Loss, SmoothL1LossConfig of loss;
    new(),
    with(with_beta: f32),
    init(),
    /// Loss `[1]` of predictions and targets of one shape.
    forward_with_reduction<D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>
        = layers::smooth_l1_loss
}

drop_in! {
    /// Magnitude of differences, to the power p.
    LpLoss, LpLossConfig of loss;
    new(p: f64),
    with(),
    init(),
    /// Loss `[1]` of predictions and targets of one shape.
    forward<D>(predictions: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1>
        = layers::lp_loss
}

impl LpLossConfig {
    /// Creates the mean absolute error.
    pub fn l1() -> LpLoss {
        Self::new(1.0).init()
    }

    /// Creates the mean squared error.
    pub fn l2() -> LpLoss {
        Self::new(2.0).init()
    }
}

drop_in! {
    /// Cross-entropy of two classes, or of several labels.
    BinaryCrossEntropyLoss, BinaryCrossEntropyLossConfig of loss;
    new(),
    with(with_weights: Option<Vec<f32>>, with_smoothing: Option<f32>, with_logits: bool),
    init(device: &Device),
    /// Mean loss `[1]` of probabilities or logits, and targets of the same shape.
    forward<D>(logits: Tensor<D>, targets: Tensor<D, Int>) -> Tensor<1> = layers::binary_cross_entropy
}
