//! Batch normalisation of an f32 batch on a CPU, also followed by ReLU or by ReLU and max-pooling in the same passes.
//!
//! In training, the normalised values are not stored, and neither is a mask: backward computes the sign of each output
//! again from the input.

use super::{
    host::{Statistics, dims},
    kernel::Settings,
};
use burn::backend::TensorMetadata;
use kernels::{
    batch_norm::{self, Affine, Centred, PooledGradient, Relu},
    host_tensor::{Host, tensor, values as host},
    layers::operation::Operation,
    pool::{self, Windows},
};
use std::sync::{Arc, OnceLock};

/// What follows a normalisation.
#[derive(Clone, Debug)]
pub enum Activation {
    None,
    Relu,
    /// ReLU and a max-pooling with these windows.
    ReluMaxPool(Windows),
}

/// A normalisation and what follows it.
#[derive(Clone, Debug)]
pub struct Activated {
    pub settings: Settings,
    pub activation: Activation,
    /// Mean and variance over all ranks, `[channels]`, after the forward pass.
    pub moments: Arc<OnceLock<[Vec<f32>; 2]>>,
}

/// What backward needs besides the input and gamma.
#[derive(Clone, Debug)]
pub struct Saved {
    statistics: Statistics,
    /// Maps from the input, relative to the statistics' anchor, to the normalised values.
    maps: Arc<Vec<Affine>>,
    /// Where each pooled value was in its window, and the input there; empty without windows.
    taken: Arc<(Vec<u8>, Vec<f32>)>,
}

impl Operation<3, 2> for Activated {
    type Saved = Saved;

    fn forward(&self, [x, gamma, beta]: [Host; 3]) -> (Host, Saved) {
        let (values, dims) = (host(&x), dims(&x));
        let (statistics, moments) = Statistics::of(values, dims, &self.settings);
        let constants = statistics.inv_std.iter().zip(&statistics.offset);
        let maps: Vec<Affine> = (host(&gamma).iter().zip(host(&beta)).zip(constants))
            .map(|((gamma, beta), (inv_std, offset))| {
                let scale = gamma * inv_std;
                Affine { factors: [scale, 0.0], constant: beta - offset * scale }
            })
            .collect();
        let input = Centred { values, centres: Some(&statistics.anchor) };
        let plain = |relu| tensor(batch_norm::apply(&maps, input, None, relu, dims), x.shape());
        let (output, taken) = match &self.activation {
            Activation::None => (plain(Relu::None), Default::default()),
            Activation::Relu => (plain(Relu::After), Default::default()),
            Activation::ReluMaxPool(windows) => {
                let pooled = pool::forward_mapped(&maps, input, windows);
                (tensor(pooled.values, windows.output()), (pooled.taken, pooled.inputs))
            }
        };
        // Set once: the operation runs once, because gradient checkpointing does not repeat it.
        let _ = self.moments.set(moments);
        (output, Saved { statistics, maps: Arc::new(maps), taken: Arc::new(taken) })
    }

    fn backward(
        &self,
        [x, gamma]: [Host; 2],
        saved: Saved,
        grad: Host,
        wanted: [bool; 3],
    ) -> [Option<Host>; 3] {
        let Saved { statistics, maps, taken } = saved;
        let dims = dims(&x);
        let input = Centred { values: host(&x), centres: Some(&statistics.anchor) };
        let grad = host(&grad);
        let plain = Centred { values: grad, centres: None };
        let through_pool =
            |windows| PooledGradient { values: grad, taken: &taken.0, inputs: &taken.1, windows, x: input };
        let sums = match &self.activation {
            Activation::None => batch_norm::sums(plain, input, None, dims),
            Activation::Relu => batch_norm::sums(plain, input, Some(&maps), dims),
            Activation::ReluMaxPool(windows) => through_pool(windows).sums(),
        };
        let sums = statistics.gradient_sums(&sums);
        let for_x = wanted[0].then(|| {
            let empty = host(&x).is_empty();
            let lines = statistics.projection(&sums, host(&gamma), &self.settings, empty);
            let gradient = match &self.activation {
                Activation::None => batch_norm::apply(&lines, plain, Some(input), Relu::None, dims),
                Activation::Relu => batch_norm::apply(&lines, plain, Some(input), Relu::Before(&maps), dims),
                Activation::ReluMaxPool(windows) => through_pool(windows).apply(&lines),
            };
            tensor(gradient, x.shape())
        });
        let [for_beta, for_gamma] = sums.map(|sums| Some(tensor(sums, gamma.shape())));
        [for_x, for_gamma, for_beta]
    }
}
