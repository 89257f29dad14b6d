//! Arithmetic of SyncBatchNorm on tensors of any Burn backend.
//!
//! E[x²] − E[x]² loses all precision if the mean is large relative to the deviation. Each rank therefore computes
//! deviations from its own mean, and the ranks' means and variances are combined as in Chan, Golub and LeVeque
//! ("Algorithms for computing the sample variance", 1983). Half types are computed in f32.

use super::passes::{Centred, Projection, Statistics, centre, gradient_sums, input_gradient, normalise};
use crate::{
    ProcessGroup, ReduceOp,
    exchange::{Exchange, Kind},
    tensor::CollectiveBackend,
};
use burn::backend::{Backend, Scalar, TensorMetadata, tensor::FloatTensor};
use burn::tensor::{DType, Shape, Slice};
use std::ops::Range;

/// Settings of a normalisation.
#[derive(Clone, Debug)]
pub struct Settings {
    pub group: ProcessGroup,
    pub epsilon: f64,
    /// Whether the returned variance is the unbiased one.
    pub unbiased: bool,
    /// Weight of this rank's batch; 0 to ignore it.
    pub weight: f64,
}

/// Normalises `x`, `[batch, channels, ...]`, after one all-gather. The output has its shape and type.
pub fn forward<B: CollectiveBackend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    beta: FloatTensor<B>,
    settings: &Settings,
) -> (FloatTensor<B>, Moments<B>) {
    let (shape, dtype) = (x.shape(), x.dtype());
    let values = flatten::<B>(x);
    let batch = Batch::<B>::of(&values, settings);
    let [scale, bias] = batch.map(gamma, beta);
    let (centred, moments) = batch.finish(settings);
    // An empty batch needs no computation.
    let output = centred.map_or(values, |centred| normalise(centred, scale, bias));
    (B::float_reshape(cast::<B>(output, dtype), shape), moments)
}

/// One rank's batch and the statistics of all ranks' batches.
struct Batch<B: Backend> {
    /// `None` for an empty batch.
    centred: Option<Centred<B>>,
    statistics: Statistics<B>,
    /// Population variance, `[1, channels]`.
    variance: FloatTensor<B>,
}

/// Mean and variance of all ranks' batches, `[channels]` each, and what backward needs.
pub struct Moments<B: Backend> {
    pub mean: FloatTensor<B>,
    pub variance: FloatTensor<B>,
    pub statistics: Statistics<B>,
}

impl<B: CollectiveBackend> Batch<B> {
    /// Computes statistics of `values`, `[batch, channels, positions]`, and exchanges them in one all-gather.
    fn of(values: &FloatTensor<B>, settings: &Settings) -> Self {
        let (shape, wide, device) = (values.shape(), values.dtype(), values.device());
        let channels = shape[1];
        let centred = (shape.num_elements() > 0).then(|| centre(values.clone()));
        let row = match &centred {
            Some(centred) if settings.weight > 0.0 => centred.row(shape.num_elements() / channels),
            Some(_) | None => B::float_zeros(Shape::new([1, 3 * channels + 2]), &device, wide.into()),
        };
        let rows = vec![1; settings.group.world_size()];
        let all = B::exchange(row, Exchange::of_step(&settings.group, Kind::AllGather(rows)));
        let (statistics, variance) = combine::<B>(all, channels, settings.epsilon);
        Self { centred, statistics, variance }
    }

    /// Scale and bias of values relative to the batch's own mean, `[1, channels]` each.
    fn map(&self, gamma: FloatTensor<B>, beta: FloatTensor<B>) -> [FloatTensor<B>; 2] {
        let (statistics, wide) = (&self.statistics, self.variance.dtype());
        let scale = B::float_mul(line::<B>(gamma, wide), statistics.inv_std.clone());
        let beta = line::<B>(beta, wide);
        let Some(centred) = &self.centred else { return [scale, beta] };
        // Difference of the own mean to the global one.
        let own = B::float_add(
            B::float_sub(centred.anchor.clone(), statistics.anchor.clone()),
            B::float_sub(centred.rest.clone(), statistics.offset.clone()),
        );
        let bias = B::float_add(B::float_mul(own, scale.clone()), beta);
        [scale, bias]
    }

    /// The centred batch, and the statistics.
    fn finish(self, settings: &Settings) -> (Option<Centred<B>>, Moments<B>) {
        let Self { centred, statistics, variance } = self;
        let channels = variance.shape()[1];
        let variance = if settings.unbiased {
            let others = B::float_sub_scalar(statistics.count.clone(), Scalar::Float(1.0));
            let others = B::float_clamp_min(others, Scalar::Float(1.0));
            B::float_mul(variance, B::float_div(statistics.count.clone(), others))
        } else {
            variance
        };
        let mean = B::float_add(statistics.anchor.clone(), statistics.offset.clone());
        let flat = |tensor| B::float_reshape(tensor, Shape::new([channels]));
        (centred, Moments { mean: flat(mean), variance: flat(variance), statistics })
    }
}

/// Computes the [`gradients`] for `grad`, the gradient of the output.
///
/// The gradient of the input, if it is requested, needs one all-reduce.
pub fn backward<B: CollectiveBackend>(
    x: FloatTensor<B>,
    gamma: FloatTensor<B>,
    grad: FloatTensor<B>,
    statistics: Statistics<B>,
    settings: &Settings,
    for_input: bool,
) -> [Option<FloatTensor<B>>; 3] {
    let (shape, dtype) = (x.shape(), x.dtype());
    let empty = shape.num_elements() == 0;
    let (values, grad) = (flatten::<B>(x), flatten::<B>(grad));
    let sums = match empty {
        true => {
            let channels = Shape::new([1, shape[1]]);
            let zeros = B::float_zeros(channels, &values.device(), values.dtype().into());
            [zeros.clone(), zeros]
        }
        false => gradient_sums(values.clone(), grad.clone(), &statistics),
    };
    let input = for_input.then(|| {
        let projection = project::<B>(&sums, gamma.clone(), &statistics, settings, empty);
        let input = input_gradient(values, grad, &statistics, projection);
        B::float_reshape(cast::<B>(input, dtype), shape)
    });
    gradients::<B>(input, sums, &gamma)
}

/// Gradients of input, gamma and beta, the latter from `sums` over this rank's samples, `[1, channels]` for beta and for
/// gamma.
fn gradients<B: Backend>(
    input: Option<FloatTensor<B>>,
    sums: [FloatTensor<B>; 2],
    gamma: &FloatTensor<B>,
) -> [Option<FloatTensor<B>>; 3] {
    let [beta, gamma] =
        sums.map(|tensor| Some(cast::<B>(B::float_reshape(tensor, gamma.shape()), gamma.dtype())));
    [input, gamma, beta]
}

/// Means of the gradient over all ranks' batches, from `sums` of this rank, after one all-reduce.
fn project<B: CollectiveBackend>(
    sums: &[FloatTensor<B>; 2],
    gamma: FloatTensor<B>,
    statistics: &Statistics<B>,
    settings: &Settings,
    empty: bool,
) -> Projection<B> {
    let (channels, wide, device) = (sums[0].shape()[1], sums[0].dtype(), sums[0].device());
    let counts = settings.weight > 0.0 && !empty;
    let row = B::float_cat(sums.to_vec(), 1);
    // Not multiplied by 0, because ignored values may be infinite.
    let row = match counts {
        true => B::float_mul_scalar(row, Scalar::Float(settings.weight)),
        false => B::float_zeros(Shape::new([1, 2 * channels]), &device, wide.into()),
    };
    let all = B::exchange(row, Exchange::of_step(&settings.group, Kind::AllReduce(ReduceOp::Sum)));
    // Divides by the weight, because the whole gradient is multiplied by it later.
    let factor = if counts { settings.weight.recip() } else { 0.0 };
    let mean = B::float_div(all, statistics.count.clone());
    let mean = B::float_mul_scalar(mean, Scalar::Float(factor));
    let means = [columns::<B>(&mean, 0..channels), columns::<B>(&mean, channels..2 * channels)];
    Projection { means, scale: B::float_mul(line::<B>(gamma, wide), statistics.inv_std.clone()) }
}

impl<B: Backend> Centred<B> {
    /// Statistics that are sent to the other ranks: `[1, 3 × channels + 2]`.
    fn row(&self, count: usize) -> FloatTensor<B> {
        let (device, dtype) = (self.rest.device(), self.rest.dtype());
        let number = |value: usize| {
            B::float_full(Shape::new([1, 1]), Scalar::Float(value as f64), &device, dtype.into())
        };
        // In two digits, because f32 represents integers exactly only up to 2²⁴.
        let (high, low) = (number(count / DIGIT), number(count % DIGIT));
        B::float_cat(vec![self.anchor.clone(), self.rest.clone(), self.variance.clone(), high, low], 1)
    }
}

/// Base of the digits of a number of values.
pub const DIGIT: usize = 1 << 16;

/// Combines the ranks' rows to the statistics of all ranks and their variance. A row of zeros has no effect.
fn combine<B: Backend>(
    rows: FloatTensor<B>,
    channels: usize,
    epsilon: f64,
) -> (Statistics<B>, FloatTensor<B>) {
    let part = |number: usize| columns::<B>(&rows, number * channels..(number + 1) * channels);
    let digit = |number: usize| columns::<B>(&rows, 3 * channels + number..3 * channels + number + 1);
    let counts = B::float_add(B::float_mul_scalar(digit(0), Scalar::Float(DIGIT as f64)), digit(1));
    let count = B::float_clamp_min(B::float_sum_dim(counts.clone(), 0), Scalar::Float(1.0));
    let weights = B::float_div(counts, count.clone());
    let mean = |tensor| B::float_sum_dim(B::float_mul(tensor, weights.clone()), 0);

    let anchors = part(0);
    let anchor = mean(anchors.clone());
    // Each rank's mean relative to the common anchor.
    let means = B::float_add(B::float_sub(anchors, anchor.clone()), part(1));
    let offset = mean(means.clone());
    let apart = B::float_sub(means, offset.clone());
    let variance = mean(B::float_add(part(2), B::float_mul(apart.clone(), apart)));
    let std = B::float_sqrt(B::float_add_scalar(variance.clone(), Scalar::Float(epsilon)));
    (Statistics { anchor, offset, inv_std: B::float_recip(std), count }, variance)
}

/// Reshapes to `[batch, channels, positions]`, in the type of the computation.
fn flatten<B: Backend>(x: FloatTensor<B>) -> FloatTensor<B> {
    let shape = x.shape();
    let wide = match x.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    };
    let positions = shape[2..].iter().product();
    cast::<B>(B::float_reshape(x, Shape::new([shape[0], shape[1], positions])), wide)
}

fn cast<B: Backend>(tensor: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    if tensor.dtype() == dtype { tensor } else { B::float_cast(tensor, dtype.into()) }
}

/// Reshapes a parameter to `[1, channels]`.
fn line<B: Backend>(parameter: FloatTensor<B>, dtype: DType) -> FloatTensor<B> {
    let channels = parameter.shape()[0];
    cast::<B>(B::float_reshape(parameter, Shape::new([1, channels])), dtype)
}

fn columns<B: Backend>(rows: &FloatTensor<B>, columns: Range<usize>) -> FloatTensor<B> {
    B::float_slice(rows.clone(), &[Slice::from(0..rows.shape()[0]), Slice::from(columns)])
}
