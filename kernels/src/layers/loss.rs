//! Losses of every value.

use super::operation::{self, shaped};
use crate::host_tensor::{Host, is_host, tensor, values};
use crate::{
    elementwise::{map, total},
    loss as kernel,
};
use burn::nn::loss::{BinaryCrossEntropyLoss, HuberLoss, LpLoss, MseLoss, Reduction, SmoothL1Loss};
use burn::tensor::{Int, Tensor};

/// The loops of a loss and its derivative in `kernel`.
macro_rules! loops {
    ($value:ident, $slope:ident) => {{
        static LOOPS: Loops = Loops {
            total: |x, y, settings| total(x, y, move |x, y| kernel::$value(x, y, settings)),
            gradient: |x, y, factor, settings| map(x, y, move |x, y| factor * kernel::$slope(x, y, settings)),
        };
        &LOOPS
    }};
}

/// Computes the loss `[1]` as `MseLoss::forward`.
pub fn mse_loss<const D: usize>(x: Tensor<D>, targets: Tensor<D>, reduction: Reduction) -> Tensor<1> {
    let loops = (loops!(squared, squared_slope), 0.0);
    of_errors([x, targets], reduction, loops, |[x, y], reduction| MseLoss.forward(x, y, reduction))
}

/// Computes the loss `[1]` as `loss.forward`.
pub fn huber_loss<const D: usize>(
    loss: &HuberLoss,
    x: Tensor<D>,
    targets: Tensor<D>,
    reduction: Reduction,
) -> Tensor<1> {
    let loops = (loops!(huber, huber_slope), loss.delta);
    of_errors([x, targets], reduction, loops, |[x, y], reduction| loss.forward(x, y, reduction))
}

/// Computes the loss `[1]` as `loss.forward_with_reduction`.
pub fn smooth_l1_loss<const D: usize>(
    loss: &SmoothL1Loss,
    x: Tensor<D>,
    targets: Tensor<D>,
    reduction: Reduction,
) -> Tensor<1> {
    let loops = (loops!(smooth_absolute, smooth_absolute_slope), loss.beta);
    of_errors([x, targets], reduction, loops, |[x, y], reduction| {
        loss.forward_with_reduction(x, y, reduction)
    })
}

/// Computes the loss `[1]` as `loss.forward`. The kernel supports p = 1 and p = 2.
pub fn lp_loss<const D: usize>(
    loss: &LpLoss,
    x: Tensor<D>,
    targets: Tensor<D>,
    reduction: Reduction,
) -> Tensor<1> {
    let elsewhere = |[x, y]: [Tensor<D>; 2], reduction| loss.forward(x, y, reduction);
    if loss.p == 2.0 {
        of_errors([x, targets], reduction, (loops!(squared, squared_slope), 0.0), elsewhere)
    } else if loss.p == 1.0 {
        of_errors([x, targets], reduction, (loops!(absolute, absolute_slope), 0.0), elsewhere)
    } else {
        elsewhere([x, targets], reduction)
    }
}

/// Computes the mean loss `[1]` as `loss.forward`. The kernel supports losses without class weights.
///
/// The gradient of a probability of 0 or 1 that contradicts its target is 0; with Burn's operations it is NaN.
pub fn binary_cross_entropy<const D: usize>(
    loss: &BinaryCrossEntropyLoss,
    x: Tensor<D>,
    targets: Tensor<D, Int>,
) -> Tensor<1> {
    if loss.weights.is_some() || x.dims() != targets.dims() || !is_host(&x) {
        return loss.forward(x, targets);
    }
    let classes = if D > 1 { x.dims()[D - 1] } else { 2 };
    let smoothing = loss.smoothing.unwrap_or_default();
    let settings = [1.0 - smoothing, smoothing / classes as f32];
    let loops = match loss.logits {
        true => loops!(logit, logit_slope),
        false => loops!(probability, probability_slope),
    };
    let divisor = x.shape().num_elements() as f32;
    of_pairs([x, targets.float()], loops, settings, divisor)
}

/// The mean or sum of a function of errors, computed on a CPU by its loops, and otherwise by `elsewhere`.
fn of_errors<const D: usize>(
    [x, targets]: [Tensor<D>; 2],
    reduction: Reduction,
    (loops, setting): (&'static Loops, f32),
    elsewhere: impl FnOnce([Tensor<D>; 2], Reduction) -> Tensor<1>,
) -> Tensor<1> {
    let covered = x.dims() == targets.dims() && is_host(&x) && is_host(&targets);
    let divisor = match reduction {
        Reduction::Mean | Reduction::Auto if covered => x.shape().num_elements() as f32,
        Reduction::Sum if covered => 1.0,
        _ => return elsewhere([x, targets], reduction),
    };
    of_pairs([x, targets], loops, [setting, 0.0], divisor)
}

/// The mean or sum of a function of pairs of values; `divisor` is the number of pairs for a mean, and 1 for a sum.
///
/// If the second values have a gradient, it is that of the first with the opposite sign.
fn of_pairs<const D: usize>(
    pairs: [Tensor<D>; 2],
    loops: &'static Loops,
    settings: [f32; 2],
    divisor: f32,
) -> Tensor<1> {
    operation::run(pairs.map(Tensor::into_dispatch), move |[x, y]| {
        let total = (loops.total)(values(&x), values(&y), settings);
        (tensor(vec![total / divisor], [1]), move |inputs: [Host; 2], grad: Host, wanted: [bool; 2]| {
            let [x, y] = inputs.each_ref().map(values);
            let factor = values(&grad)[0] / divisor;
            let gradient = |wanted, factor| {
                if wanted { (loops.gradient)(x, y, factor, settings) } else { Vec::new() }
            };
            shaped([gradient(wanted[0], factor), gradient(wanted[1], -factor)], &inputs, wanted)
        })
    })
}

/// Loops over pairs of values.
///
/// In a static variable, they are compiled in this crate, whose profile optimises them, and not in a model's crate.
struct Loops {
    total: fn(&[f32], &[f32], [f32; 2]) -> f32,
    gradient: Gradient,
}

/// Derivatives by the first values, from both values, times a factor.
type Gradient = fn(&[f32], &[f32], f32, [f32; 2]) -> Vec<f32>;
