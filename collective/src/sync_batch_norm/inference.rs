//! Normalisation of an f32 batch on a CPU with the running statistics.

use super::host::dims;
use burn::backend::TensorMetadata;
use kernels::{
    batch_norm::{self, Affine, Centred, Relu},
    host_tensor::{Host, tensor, values as host},
    layers::operation::{Operation, shaped},
};

/// Inputs: the batch, gamma, beta, the running mean and the running variance.
#[derive(Clone, Debug)]
pub struct Inference {
    pub epsilon: f64,
}

impl Inference {
    /// 1 / √(variance + ε) of each channel.
    fn inverse_deviations(&self, variance: &Host) -> Vec<f32> {
        host(variance).iter().map(|variance| 1.0 / (variance + self.epsilon as f32).sqrt()).collect()
    }

    /// Maps from centred values, with these summands.
    fn maps(&self, gamma: &Host, variance: &Host, summands: impl Iterator<Item = f32>) -> Vec<Affine> {
        let scales = host(gamma).iter().zip(self.inverse_deviations(variance));
        let map = |((gamma, inverse), constant)| Affine { factors: [gamma * inverse, 0.0], constant };
        scales.zip(summands).map(map).collect()
    }
}

impl Operation<5, 5> for Inference {
    type Saved = ();

    fn forward(&self, [x, gamma, beta, mean, variance]: [Host; 5]) -> (Host, ()) {
        let maps = self.maps(&gamma, &variance, host(&beta).iter().copied());
        let input = Centred { values: host(&x), centres: Some(host(&mean)) };
        let output = batch_norm::apply(&maps, input, None, Relu::None, dims(&x));
        (tensor(output, x.shape()), ())
    }

    /// The statistics are constants.
    fn backward(&self, read: [Host; 5], (): (), grad: Host, wanted: [bool; 5]) -> [Option<Host>; 5] {
        let [x, gamma, _, mean, variance] = &read;
        let dims = dims(x);
        let gradient = Centred { values: host(&grad), centres: None };
        let mut for_x = Vec::new();
        if wanted[0] {
            let maps = self.maps(gamma, variance, std::iter::repeat(0.0));
            for_x = batch_norm::apply(&maps, gradient, None, Relu::None, dims);
        }
        let (mut for_gamma, mut for_beta) = (Vec::new(), Vec::new());
        // A frozen layer needs no sums.
        if wanted[1] || wanted[2] {
            let input = Centred { values: host(x), centres: Some(host(mean)) };
            let sums = batch_norm::sums(gradient, input, None, dims);
            let inverse = self.inverse_deviations(variance);
            for_gamma =
                sums.iter().zip(inverse).map(|([_, along], inverse)| *along as f32 * inverse).collect();
            for_beta = sums.iter().map(|[sum, _]| *sum as f32).collect();
        }
        let all = [for_x, for_gamma, for_beta, Vec::new(), Vec::new()];
        shaped(all, &read, [wanted[0], wanted[1], wanted[2], false, false])
    }
}
