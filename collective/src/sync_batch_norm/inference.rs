//! Normalisation of an f32 batch on a CPU with the running statistics.

use super::host::dims;
use burn::backend::{Flex, TensorMetadata};
use kernels::{
    autodiff::Backward,
    batch_norm::{self, Affine, Centred, Relu},
    host_tensor::{Host, tensor, values as host},
    layers::operation::shaped,
};

/// 1 / √(variance + ε) of each channel.
fn inverse_deviations(epsilon: f64, variance: &Host) -> Vec<f32> {
    host(variance).iter().map(|variance| 1.0 / (variance + epsilon as f32).sqrt()).collect()
}

/// Maps from centred values, with these summands.
fn maps(gamma: &Host, inverse: &[f32], summands: impl Iterator<Item = f32>) -> Vec<Affine> {
    let map = |((gamma, inverse), constant): ((&f32, &f32), f32)| Affine {
        factors: [gamma * inverse, 0.0],
        constant,
    };
    host(gamma).iter().zip(inverse).zip(summands).map(map).collect()
}

/// The normalised batch and the backward pass, from the batch, gamma, beta, the running mean and the running variance.
pub fn inference(
    epsilon: f64,
    [x, gamma, beta, mean, variance]: [Host; 5],
) -> (Host, impl Backward<Flex, 5, 5>) {
    let to_output = maps(&gamma, &inverse_deviations(epsilon, &variance), host(&beta).iter().copied());
    let input = Centred { values: host(&x), centres: Some(host(&mean)) };
    let output = batch_norm::apply(&to_output, input, None, Relu::None, dims(&x));
    // The statistics are constants.
    let backward = move |read: [Host; 5], grad: Host, wanted: [bool; 5]| {
        let [x, gamma, _, mean, variance] = &read;
        let dims = dims(x);
        let gradient = Centred { values: host(&grad), centres: None };
        let inverse = inverse_deviations(epsilon, variance);
        let mut for_x = Vec::new();
        if wanted[0] {
            let maps = maps(gamma, &inverse, std::iter::repeat(0.0));
            for_x = batch_norm::apply(&maps, gradient, None, Relu::None, dims);
        }
        let (mut for_gamma, mut for_beta) = (Vec::new(), Vec::new());
        // A frozen layer needs no sums.
        if wanted[1] || wanted[2] {
            let input = Centred { values: host(x), centres: Some(host(mean)) };
            let sums = batch_norm::sums(gradient, input, None, dims);
            for_gamma =
                sums.iter().zip(inverse).map(|([_, along], inverse)| *along as f32 * inverse).collect();
            for_beta = sums.iter().map(|[sum, _]| *sum as f32).collect();
        }
        let all = [for_x, for_gamma, for_beta, Vec::new(), Vec::new()];
        shaped(all, &read, [wanted[0], wanted[1], wanted[2], false, false])
    };
    (tensor(output, x.shape()), backward)
}
