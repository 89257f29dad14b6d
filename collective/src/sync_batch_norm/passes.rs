//! The passes of SyncBatchNorm over a batch with Burn's operations, and what the kernels for f32 on a CPU need of them.
//!
//! Batches are `[batch, channels, positions]`, everything else `[1, channels]`.

use burn::backend::{Backend, Flex, TensorMetadata, tensor::FloatTensor};
use burn::tensor::Shape;
use kernels::{
    batch_norm::{self, Affine},
    host_tensor::{Host, contiguous, tensor, values as host},
};

/// Minimum number of values per channel from which a batch's anchor is computed, if there are as many.
const SAMPLE: usize = 256;

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
    /// Values in the form that [`centre`] returns and [`normalise`] takes.
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

/// [`centre`] for an f32 batch on a CPU, which reads it twice. The returned values are not centred.
pub fn centre_on_host(values: Host) -> Centred<Flex> {
    let values = contiguous(values);
    let shape = values.shape().dims();
    let count = (shape[0] * shape[2]) as f64;
    let x = |centres| batch_norm::Centred { values: host(&values), centres };
    // Means of some images. An anchor is at most √(values per channel / SAMPLE) deviations from the batch's mean, so
    // that differences lose few digits.
    let images = SAMPLE.div_ceil(shape[2]).min(shape[0]);
    let some = batch_norm::sums(x(None), x(None), None, [images, shape[1], shape[2]]);
    let anchor: Vec<f32> = some.iter().map(|[sum, _]| (sum / (images * shape[2]) as f64) as f32).collect();
    let sums = batch_norm::sums(x(Some(&anchor)), x(Some(&anchor)), None, shape);
    let rest = sums.iter().map(|[sum, _]| (sum / count) as f32).collect();
    let variance = sums.iter().map(|[sum, squares]| {
        let rest = sum / count;
        (squares / count - rest * rest).max(0.0) as f32
    });
    Centred { anchor: line(anchor), rest: line(rest), variance: line(variance.collect()), values }
}

/// Sums of the gradient, and along the normalised values, from sums relative to the anchor. `[1, channels]` each.
pub fn gradient_lines(sums: &[[f64; 2]], statistics: &Statistics<Flex>) -> [Host; 2] {
    let constants = host(&statistics.offset).iter().zip(host(&statistics.inv_std));
    let along = sums.iter().zip(constants).map(|([sum, along], (&offset, &inv_std))| {
        ((along - sum * f64::from(offset)) * f64::from(inv_std)) as f32
    });
    let along = line(along.collect());
    [line(sums.iter().map(|[sum, _]| *sum as f32).collect()), along]
}

/// Each channel's map from the output's gradient and the input relative to the anchor to the input's gradient.
pub fn projected_lines(statistics: &Statistics<Flex>, projection: &Projection<Flex>) -> Vec<Affine> {
    let (offset, inv_std) = (host(&statistics.offset), host(&statistics.inv_std));
    let [mean, along] = projection.means.each_ref().map(host);
    let scale = host(&projection.scale);
    let lines = (0..scale.len()).map(|channel| {
        let slope = -scale[channel] * along[channel] * inv_std[channel];
        let constant = -scale[channel] * mean[channel] - slope * offset[channel];
        Affine { factors: [scale[channel], slope], constant }
    });
    lines.collect()
}

/// `[1, channels]`
fn line(values: Vec<f32>) -> Host {
    let channels = values.len();
    tensor(values, [1, channels])
}
