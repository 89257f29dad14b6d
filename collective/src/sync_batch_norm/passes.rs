//! The passes of SyncBatchNorm over a batch with Burn's operations.
//!
//! Batches are `[batch, channels, positions]`, everything else `[1, channels]`.

use burn::backend::{Backend, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Shape;

/// Statistics of all ranks' batches, `[1, channels]` each.
#[derive(Clone, Debug)]
pub struct Statistics<B: Backend> {
    /// The mean is `anchor + offset`, because one f32 cannot represent a mean of 1e4 with a deviation of 1e-2
    /// precisely enough.
    pub anchor: FloatTensor<B>,
    pub offset: FloatTensor<B>,
    /// 1 / √(variance + ε)
    pub inv_std: FloatTensor<B>,
    /// Number of values per channel over all ranks, at least 1. Shape `[1, 1]`.
    pub count: FloatTensor<B>,
}

/// One rank's batch about its own mean, which is `anchor + rest`.
pub struct Centred<B: Backend> {
    values: FloatTensor<B>,
    pub anchor: FloatTensor<B>,
    pub rest: FloatTensor<B>,
    pub variance: FloatTensor<B>,
}

/// Constants of the input's gradient, `[1, channels]` each.
pub struct Projection<B: Backend> {
    /// Means of the output's gradient and along the normalised values.
    pub means: [FloatTensor<B>; 2],
    pub scale: FloatTensor<B>,
}

/// Computes the statistics of a non-empty batch.
pub fn centre<B: Backend>(values: FloatTensor<B>) -> Centred<B> {
    // The sum of large numbers is rounded, but close enough to the mean for exact differences.
    let anchor = mean::<B>(values.clone());
    let values = B::float_sub(values, per_channel::<B>(anchor.clone()));
    let rest = mean::<B>(values.clone());
    let values = B::float_sub(values, per_channel::<B>(rest.clone()));
    let variance = mean::<B>(B::float_mul(values.clone(), values.clone()));
    Centred { values, anchor, rest, variance }
}

/// Subtracts the batch's own mean, multiplies by `scale` and adds `bias`.
pub fn normalise<B: Backend>(
    centred: Centred<B>,
    scale: FloatTensor<B>,
    bias: FloatTensor<B>,
) -> FloatTensor<B> {
    let scaled = B::float_mul(centred.values, per_channel::<B>(scale));
    B::float_add(scaled, per_channel::<B>(bias))
}

/// Computes the sums of `grad` and of `grad` times the normalised values.
pub fn gradient_sums<B: Backend>(
    values: FloatTensor<B>,
    grad: FloatTensor<B>,
    statistics: &Statistics<B>,
) -> [FloatTensor<B>; 2] {
    let normalised = normalised::<B>(values, statistics);
    [sum::<B>(grad.clone()), sum::<B>(B::float_mul(grad, normalised))]
}

/// Subtracts the projection's means from `grad` and multiplies by its scale.
pub fn input_gradient<B: Backend>(
    values: FloatTensor<B>,
    grad: FloatTensor<B>,
    statistics: &Statistics<B>,
    Projection { means, scale }: Projection<B>,
) -> FloatTensor<B> {
    let [mean, along] = means.map(per_channel::<B>);
    let projected = B::float_mul(normalised::<B>(values, statistics), along);
    let rest = B::float_sub(B::float_sub(grad, mean), projected);
    B::float_mul(rest, per_channel::<B>(scale))
}

fn normalised<B: Backend>(values: FloatTensor<B>, statistics: &Statistics<B>) -> FloatTensor<B> {
    let centred = B::float_sub(values, per_channel::<B>(statistics.anchor.clone()));
    let centred = B::float_sub(centred, per_channel::<B>(statistics.offset.clone()));
    B::float_mul(centred, per_channel::<B>(statistics.inv_std.clone()))
}

/// `[1, channels]` against `[batch, channels, positions]`.
fn per_channel<B: Backend>(line: FloatTensor<B>) -> FloatTensor<B> {
    let channels = line.shape()[1];
    B::float_reshape(line, Shape::new([1, channels, 1]))
}

/// Sums dimension by dimension, which rounds less than one long sum.
fn sum<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let channels = tensor.shape()[1];
    B::float_reshape(B::float_sum_dim(B::float_sum_dim(tensor, 2), 0), Shape::new([1, channels]))
}

fn mean<B: Backend>(tensor: FloatTensor<B>) -> FloatTensor<B> {
    let channels = tensor.shape()[1];
    B::float_reshape(B::float_mean_dim(B::float_mean_dim(tensor, 2), 0), Shape::new([1, channels]))
}
