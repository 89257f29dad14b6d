//! Cross-entropy of classes.

use burn::nn::loss::CrossEntropyLoss;
use burn::tensor::{Int, Tensor};

/// Computes the mean loss `[1]` of logits `[batch, classes]` and targets `[batch]`, as `loss.forward`.
///
/// On CUDA it takes two launches, and one for its gradient, under the conditions of [`cross_entropy_totals`].
pub fn cross_entropy(loss: &CrossEntropyLoss, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    match cross_entropy_totals(loss, &logits, &targets) {
        Some((mean, _totals)) => mean,
        None => loss.forward(logits, targets),
    }
}

/// The mean loss `[1]`, and `[loss summed over samples, correct answers]` without a graph.
///
/// An answer is correct if the first of the largest logits is the target's. A target that is not a class gives NaN.
///
/// `None` unless the logits are in f32 and the targets in i32, on one CUDA device and not empty, with at most 1024 classes,
/// and the loss has no class weights and no padding.
pub fn cross_entropy_totals(
    loss: &CrossEntropyLoss,
    logits: &Tensor<2>,
    targets: &Tensor<1, Int>,
) -> Option<(Tensor<1>, Tensor<1>)> {
    #[cfg(feature = "cuda")]
    if loss.logits && loss.weights.is_none() && loss.pad_tokens.is_none() {
        return crate::cuda::cross_entropy(logits, targets, loss.smoothing.unwrap_or_default());
    }
    #[cfg(not(feature = "cuda"))]
    let _ = (loss, logits, targets);
    None
}
