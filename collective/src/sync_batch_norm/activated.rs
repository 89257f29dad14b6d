//! Batch normalisation of an f32 batch on a CPU, also followed by ReLU or by ReLU and max-pooling in the same passes.
//!
//! In training, the normalised values are not stored, and neither is a mask: backward computes the sign of each output
//! again from the input.

use super::{
    host::{Statistics, dims},
    kernel::Settings,
};
use burn::backend::{Flex, TensorMetadata};
use kernels::{
    autodiff::Backward,
    batch_norm::{self, Affine, Centred, PooledGradient, Relu},
    host_tensor::{Host, tensor, values as host},
    pool::{self, Windows},
};

/// What follows a normalisation.
pub enum Activation {
    None,
    Relu,
    /// ReLU and a max-pooling with these windows.
    ReluMaxPool(Windows),
}

/// The output of a normalisation and what follows it, mean and variance over all ranks, `[channels]`, and the backward
/// pass.
pub fn activated(
    settings: Settings,
    activation: Activation,
    [x, gamma, beta]: [Host; 3],
) -> (Host, [Vec<f32>; 2], impl Backward<Flex, 3, 2>) {
    let (values, dims) = (host(&x), dims(&x));
    let (statistics, moments) = Statistics::of(values, dims, &settings);
    let constants = statistics.inv_std.iter().zip(&statistics.offset);
    // From the input, relative to the statistics' anchor, to the normalised values.
    let maps: Vec<Affine> = (host(&gamma).iter().zip(host(&beta)).zip(constants))
        .map(|((gamma, beta), (inv_std, offset))| {
            let scale = gamma * inv_std;
            Affine { factors: [scale, 0.0], constant: beta - offset * scale }
        })
        .collect();
    let input = Centred { values, centres: Some(&statistics.anchor) };
    let plain = |relu| tensor(batch_norm::apply(&maps, input, None, relu, dims), x.shape());
    // Where each pooled value was in its window, and the input there; empty without windows.
    let (output, taken) = match &activation {
        Activation::None => (plain(Relu::None), Default::default()),
        Activation::Relu => (plain(Relu::After), Default::default()),
        Activation::ReluMaxPool(windows) => {
            let pooled = pool::forward_mapped(&maps, input, windows);
            (tensor(pooled.values, windows.output()), (pooled.taken, pooled.inputs))
        }
    };
    let backward = move |[x, gamma]: [Host; 2], grad: Host, wanted: [bool; 3]| {
        let input = Centred { values: host(&x), centres: Some(&statistics.anchor) };
        let grad = host(&grad);
        let plain = Centred { values: grad, centres: None };
        let through_pool =
            |windows| PooledGradient { values: grad, taken: &taken.0, inputs: &taken.1, windows, x: input };
        let sums = match &activation {
            Activation::None => batch_norm::sums(plain, input, None, dims),
            Activation::Relu => batch_norm::sums(plain, input, Some(&maps), dims),
            Activation::ReluMaxPool(windows) => through_pool(windows).sums(),
        };
        let sums = statistics.gradient_sums(&sums);
        let for_x = wanted[0].then(|| {
            let empty = host(&x).is_empty();
            let lines = statistics.projection(&sums, host(&gamma), &settings, empty);
            let gradient = match &activation {
                Activation::None => batch_norm::apply(&lines, plain, Some(input), Relu::None, dims),
                Activation::Relu => batch_norm::apply(&lines, plain, Some(input), Relu::Before(&maps), dims),
                Activation::ReluMaxPool(windows) => through_pool(windows).apply(&lines),
            };
            tensor(gradient, x.shape())
        });
        let [for_beta, for_gamma] = sums.map(|sums| Some(tensor(sums, gamma.shape())));
        [for_x, for_gamma, for_beta]
    };
    (output, moments, backward)
}
