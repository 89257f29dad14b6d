//! SyncBatchNorm on tensors of any Burn device, as one operation that computes its gradients itself.
//!
//! E[x²] − E[x]² loses all precision if the mean is large relative to the deviation. Each rank therefore computes
//! deviations from its own mean, and the ranks' means and variances are combined as in Chan, Golub and LeVeque
//! ("Algorithms for computing the sample variance", 1983). Half types are computed in f32.
//!
//! Batches are `[batch, channels, positions]`, everything else `[1, channels, 1]`.

use crate::{
    ProcessGroup, ReduceOp,
    exchange::{Exchange, Kind},
    parameters::{erased, reshaped},
    tensor,
};
use burn::backend::{
    Autodiff, Backend, Dispatch, DispatchKindConversion, DispatchTensor,
    autodiff::checkpoint::strategy::BalancedCheckpointing, tensor::FloatTensor,
};
use burn::tensor::{DType, Shape, Tensor};
use kernels::autodiff;

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

/// What backward needs besides the batch and gamma: the settings, and the statistics of all ranks' batches.
struct State {
    settings: Settings,
    /// The mean is `anchor + offset`, because one f32 cannot represent a mean of 1e4 with a deviation of 1e-2
    /// precisely enough.
    anchor: Tensor<3>,
    offset: Tensor<3>,
    /// 1 / √(variance + ε)
    inv_std: Tensor<3>,
    /// Number of values per channel over all ranks, at least 1. Shape `[1, 1, 1]`.
    count: Tensor<3>,
}

/// Normalises `x` of shape `[batch, channels, ...]`, with gamma and beta, after one all-gather. Also returns mean and
/// variance over all ranks, `[channels]`, without autodiff.
///
/// If the group fails, the results are undefined and the group keeps the cause. `None` unless the inputs are of the
/// backend.
pub fn forward<B: Backend, const D: usize>(
    inputs: [FloatTensor<Dispatch>; 3],
    settings: &Settings,
) -> Option<(Tensor<D>, [Tensor<1>; 2])>
where
    DispatchTensor: DispatchKindConversion<B>
        + DispatchKindConversion<Autodiff<B>>
        + DispatchKindConversion<Autodiff<B, BalancedCheckpointing>>,
{
    let mut moments = None;
    let output = autodiff::run::<B, _, 3, 2, D>(inputs, |inputs| {
        let (output, of_all, state) = normalise(inputs.map(Tensor::from_primitive::<B>), settings);
        moments = Some(of_all);
        // The gradient of the input, if it is requested, needs one all-reduce.
        let backward = move |read: [FloatTensor<B>; 2], gradient, wanted: [bool; 3]| {
            let read = read.map(Tensor::from_primitive::<B>);
            let gradients = state.backward(read, Tensor::from_primitive::<B>(gradient), wanted[0]);
            gradients.map(|gradient| gradient?.try_into_primitive::<B>().ok())
        };
        Some((output.try_into_primitive::<B>().ok()?, backward))
    })?;
    Some((output, moments?))
}

fn normalise([x, gamma, beta]: [Tensor<1>; 3], settings: &Settings) -> (Tensor<1>, [Tensor<1>; 2], State) {
    let (shape, dtype, device) = (x.shape(), x.dtype(), x.device());
    let values = flatten(x);
    let ([batch, channels, positions], wide) = (values.dims(), values.dtype());
    // An empty batch needs no computation.
    let own = (batch * positions > 0).then(|| Centred::of(values.clone()));
    let row = match &own {
        Some(own) if settings.weight > 0.0 => own.row(batch * positions),
        Some(_) | None => Tensor::zeros([1, 3 * channels + 2, 1], (&device, wide)),
    };
    let kind = Kind::AllGather(vec![1; settings.group.world_size()]);
    let rows = tensor::exchange(row, &Exchange::of_step(&settings.group, kind));
    let (state, variance) = combine(rows, channels, settings);
    let scale = line(gamma, wide) * state.inv_std.clone();
    let output = own.map_or(values, |own| {
        // Difference of the own mean to the global one.
        let apart = (own.anchor - state.anchor.clone()) + (own.rest - state.offset.clone());
        let bias = apart * scale.clone() + line(beta, wide);
        own.values * scale + bias
    });
    let variance = if settings.unbiased {
        let others = state.count.clone().sub_scalar(1.0).clamp_min(1.0);
        variance * (state.count.clone() / others)
    } else {
        variance
    };
    let moments = [state.anchor.clone() + state.offset.clone(), variance];
    (reshaped(erased(output.cast(dtype)), shape), moments.map(|tensor| tensor.reshape([channels])), state)
}

impl State {
    /// Gradients of input, gamma and beta; those of gamma and beta are sums over this rank's samples.
    fn backward(
        &self,
        [x, gamma]: [Tensor<1>; 2],
        grad: Tensor<1>,
        for_input: bool,
    ) -> [Option<Tensor<1>>; 3] {
        let (settings, shape, dtype) = (&self.settings, x.shape(), x.dtype());
        let (values, grad) = (flatten(x), flatten(grad));
        let [_, channels, _] = values.dims();
        let normalised =
            || (values.clone() - self.anchor.clone() - self.offset.clone()) * self.inv_std.clone();
        let empty = shape.num_elements() == 0;
        let sums = match empty {
            true => [(); 2].map(|()| Tensor::zeros([1, channels, 1], (&values.device(), values.dtype()))),
            // Dimension by dimension, which rounds less than one long sum.
            false => [grad.clone(), grad.clone() * normalised()].map(|all| all.sum_dim(2).sum_dim(0)),
        };
        let input = for_input.then(|| {
            let counts = settings.weight > 0.0 && !empty;
            let row = Tensor::cat(sums.to_vec(), 1);
            // Not multiplied by 0, because ignored values may be infinite.
            let row = if counts { row.mul_scalar(settings.weight) } else { row.zeros_like() };
            let kind = Kind::AllReduce(ReduceOp::Sum);
            let all = tensor::exchange(row, &Exchange::of_step(&settings.group, kind));
            // Divides by the weight, because the whole gradient is multiplied by it later.
            let factor = if counts { settings.weight.recip() } else { 0.0 };
            let means = (all / self.count.clone()).mul_scalar(factor);
            let [mean, along] = [0, channels].map(|from| means.clone().narrow(1, from, channels));
            let scale = line(gamma.clone(), values.dtype()) * self.inv_std.clone();
            let input = (grad - mean - normalised() * along) * scale;
            reshaped(erased(input.cast(dtype)), shape)
        });
        let [for_beta, for_gamma] = sums.map(|sums| Some(sums.reshape([channels]).cast(gamma.dtype())));
        [input, for_gamma, for_beta]
    }
}

/// One rank's batch about its own mean, which is `anchor + rest`.
struct Centred {
    values: Tensor<3>,
    anchor: Tensor<3>,
    rest: Tensor<3>,
    variance: Tensor<3>,
}

impl Centred {
    /// Computes the statistics of a non-empty batch.
    fn of(values: Tensor<3>) -> Self {
        let mean = |values: Tensor<3>| values.mean_dim(2).mean_dim(0);
        // The sum of large numbers is rounded, but close enough to the mean for exact differences.
        let anchor = mean(values.clone());
        let values = values - anchor.clone();
        let rest = mean(values.clone());
        let values = values - rest.clone();
        let variance = mean(values.clone() * values.clone());
        Self { values, anchor, rest, variance }
    }

    /// Statistics that are sent to the other ranks: `[1, 3 × channels + 2, 1]`.
    fn row(&self, count: usize) -> Tensor<3> {
        // In two digits, because f32 represents integers exactly only up to 2²⁴.
        let [high, low] = [count / DIGIT, count % DIGIT]
            .map(|digit| Tensor::full([1, 1, 1], digit as f64, (&self.rest.device(), self.rest.dtype())));
        Tensor::cat(vec![self.anchor.clone(), self.rest.clone(), self.variance.clone(), high, low], 1)
    }
}

/// Base of the digits of a number of values.
pub const DIGIT: usize = 1 << 16;

/// Combines the ranks' rows to the statistics of all ranks and their variance. A row of zeros has no effect.
fn combine(rows: Tensor<3>, channels: usize, settings: &Settings) -> (State, Tensor<3>) {
    let part = |number: usize| rows.clone().narrow(1, number * channels, channels);
    let digit = |number: usize| rows.clone().narrow(1, 3 * channels + number, 1);
    let counts = digit(0).mul_scalar(DIGIT as f64) + digit(1);
    let count = counts.clone().sum_dim(0).clamp_min(1.0);
    let weights = counts / count.clone();
    let mean = |of_ranks: Tensor<3>| (of_ranks * weights.clone()).sum_dim(0);

    let anchor = mean(part(0));
    // Each rank's mean relative to the common anchor.
    let means = part(0) - anchor.clone() + part(1);
    let offset = mean(means.clone());
    let apart = means - offset.clone();
    let variance = mean(part(2) + apart.clone() * apart);
    let inv_std = variance.clone().add_scalar(settings.epsilon).sqrt().recip();
    (State { settings: settings.clone(), anchor, offset, inv_std, count }, variance)
}

/// Reshapes to `[batch, channels, positions]`, in the type of the computation.
fn flatten(x: Tensor<1>) -> Tensor<3> {
    let shape = x.shape();
    let wide = match x.dtype() {
        DType::F16 | DType::BF16 => DType::F32,
        other => other,
    };
    let flat = Shape::new([shape[0], shape[1], shape[2..].iter().product()]);
    Tensor::<3>::from_dispatch(reshaped(x, flat).into_dispatch()).cast(wide)
}

/// Reshapes a parameter to `[1, channels, 1]`.
fn line(parameter: Tensor<1>, dtype: DType) -> Tensor<3> {
    let [channels] = parameter.dims();
    parameter.reshape([1, channels, 1]).cast(dtype)
}
