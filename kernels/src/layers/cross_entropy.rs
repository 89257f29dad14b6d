//! Cross-entropy of classes.

use super::operation;
use crate::cross_entropy::{CrossEntropy, Targets};
use crate::host_tensor::{Host, is_host, tensor, values};
use burn::backend::TensorMetadata;
use burn::nn::loss::CrossEntropyLoss;
use burn::tensor::{Int, Tensor, assert_shape};

/// Computes the mean loss `[1]` of logits `[batch, classes]` and targets `[batch]`, as `loss.forward`.
///
/// On CUDA it takes two launches, and one for its gradient, under the conditions of [`cross_entropy_totals`]. On a CPU the
/// kernel supports logits in f32, with class weights or smoothing; a target that is not a class gives NaN, unless it is
/// padding.
pub fn cross_entropy(loss: &CrossEntropyLoss, logits: Tensor<2>, targets: Tensor<1, Int>) -> Tensor<1> {
    match cross_entropy_totals(loss, &logits, &targets) {
        Some((mean, _totals)) => mean,
        None if is_host(&logits) && is_covered(loss) => {
            let [batch, classes] = logits.dims();
            assert_shape!(targets, [batch]);
            let kernel = CrossEntropy { classes, smoothing: loss.smoothing.unwrap_or_default() };
            let classes: Vec<i64> = targets.into_data().iter().collect();
            let weights = weights(loss, &classes);
            operation::run([logits.into_dispatch()], move |[logits]| {
                let targets = Targets { classes: &classes, weights: &weights };
                let (loss, saved) = kernel.forward(values(&logits), targets);
                (tensor(vec![loss], [1]), move |[logits]: [Host; 1], grad: Host, _| {
                    let targets = Targets { classes: &classes, weights: &weights };
                    let gradient = kernel.backward(values(&logits), targets, &saved, values(&grad)[0]);
                    [Some(tensor(gradient, logits.shape()))]
                })
            })
        }
        None => loss.forward(logits, targets),
    }
}

/// Whether the kernel computes the loss, without a gradient of the class weights.
fn is_covered(loss: &CrossEntropyLoss) -> bool {
    let weighted = loss.weights.as_ref();
    loss.logits && weighted.is_none_or(|weights| loss.smoothing.is_none() && !weights.is_require_grad())
}

/// Weight of each target, which is 0 for padding; empty if all are 1.
fn weights(loss: &CrossEntropyLoss, targets: &[i64]) -> Vec<f32> {
    if is_plain(loss) {
        return Vec::new();
    }
    let classes: Option<Vec<f32>> = loss.weights.as_ref().map(|weights| weights.to_data().iter().collect());
    let padding = loss.pad_tokens.as_deref().unwrap_or_default();
    let weight = |target: &i64| match (usize::try_from(*target), &classes) {
        (Ok(target), _) if padding.contains(&target) => 0.0,
        (Ok(target), Some(classes)) => classes.get(target).copied().unwrap_or(f32::NAN),
        _ => 1.0,
    };
    targets.iter().map(weight).collect()
}

/// Whether the loss has no class weights and no padding.
fn is_plain(loss: &CrossEntropyLoss) -> bool {
    loss.logits && loss.weights.is_none() && loss.pad_tokens.is_none()
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
    if is_plain(loss) {
        return crate::cuda::cross_entropy(logits, targets, loss.smoothing.unwrap_or_default());
    }
    #[cfg(not(feature = "cuda"))]
    let _ = (loss, logits, targets);
    None
}
