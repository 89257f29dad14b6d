//! Losses.

use super::drop_in::drop_in;
use crate::layers;
use burn::module::Module;
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
    HuberLoss: burn::nn::loss::HuberLoss;
    HuberLossConfig: burn::nn::loss::HuberLossConfig,
    new(delta: f32),
    with(),
    init()
}

impl HuberLoss {
    /// Loss `[1]` of predictions and targets of one shape.
    pub fn forward<const D: usize>(
        &self,
        predictions: Tensor<D>,
        targets: Tensor<D>,
        reduction: Reduction,
    ) -> Tensor<1> {
        layers::huber_loss(&self.0, predictions, targets, reduction)
    }
}

drop_in! {
    /// Huber's loss divided by β.
    SmoothL1Loss: burn::nn::loss::SmoothL1Loss;
    SmoothL1LossConfig: burn::nn::loss::SmoothL1LossConfig,
    new(),
    with(with_beta: f32),
    init()
}

impl SmoothL1Loss {
    /// Loss `[1]` of predictions and targets of one shape.
    pub fn forward_with_reduction<const D: usize>(
        &self,
        predictions: Tensor<D>,
        targets: Tensor<D>,
        reduction: Reduction,
    ) -> Tensor<1> {
        layers::smooth_l1_loss(&self.0, predictions, targets, reduction)
    }
}

drop_in! {
    /// Magnitude of differences, to the power p.
    LpLoss: burn::nn::loss::LpLoss;
    LpLossConfig: burn::nn::loss::LpLossConfig,
    new(p: f64),
    with(),
    init()
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

impl LpLoss {
    /// Loss `[1]` of predictions and targets of one shape.
    pub fn forward<const D: usize>(
        &self,
        predictions: Tensor<D>,
        targets: Tensor<D>,
        reduction: Reduction,
    ) -> Tensor<1> {
        layers::lp_loss(&self.0, predictions, targets, reduction)
    }
}

drop_in! {
    /// Cross-entropy of two classes, or of several labels.
    BinaryCrossEntropyLoss: burn::nn::loss::BinaryCrossEntropyLoss;
    BinaryCrossEntropyLossConfig: burn::nn::loss::BinaryCrossEntropyLossConfig,
    new(),
    with(with_weights: Option<Vec<f32>>, with_smoothing: Option<f32>, with_logits: bool),
    init(device: &Device)
}

impl BinaryCrossEntropyLoss {
    /// Mean loss `[1]` of probabilities or logits, and targets of the same shape.
    pub fn forward<const D: usize>(&self, logits: Tensor<D>, targets: Tensor<D, Int>) -> Tensor<1> {
        layers::binary_cross_entropy(&self.0, logits, targets)
    }
}
