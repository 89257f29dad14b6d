//! Batch normalisation followed by ReLU, or by ReLU and max-pooling, in the same passes over an f32 batch on a CPU.
//!
//! In training, the normalised values are not stored, and neither is a mask: backward computes the sign of each output
//! again from the input.

use super::{
    kernel::{Batch, Gradients, Moments, Settings, flatten, project},
    passes::{Statistics, gradient_lines, projected_lines},
};
use burn::backend::{Flex, TensorMetadata};
use kernels::{
    batch_norm::{self, Affine, Centred, PooledGradient, ReluGradient},
    host_tensor::{Host, contiguous, tensor, values as host},
    layers::operation::Operation,
    pool::{self, Windows},
};
use std::sync::{Arc, OnceLock};

/// A normalisation and what follows its ReLU.
#[derive(Clone, Debug)]
pub struct Activated {
    pub settings: Settings,
    /// Windows of a max-pooling.
    pub windows: Option<Windows>,
    /// Mean and variance over all ranks, `[channels]`, after the forward pass.
    pub moments: Arc<OnceLock<[Vec<f32>; 2]>>,
}

/// What backward needs besides the input and gamma.
#[derive(Clone, Debug)]
pub struct Saved {
    statistics: Statistics<Flex>,
    /// Maps from the input, relative to the statistics' anchor, to the normalised values.
    maps: Arc<Vec<Affine>>,
    /// Where each pooled value was in its window, and the input there; empty without windows.
    taken: Arc<(Vec<u8>, Vec<f32>)>,
}

impl Operation<3, 2> for Activated {
    type Saved = Saved;

    const READS: [usize; 2] = [0, 1];

    fn forward(&self, [x, gamma, beta]: [Host; 3]) -> (Host, Saved) {
        let values = flatten::<Flex>(x.clone());
        let batch = Batch::<Flex>::of(values.clone(), &self.settings);
        let statistics = &batch.statistics;
        let constants = host(&statistics.inv_std).iter().zip(host(&statistics.offset));
        let maps: Vec<Affine> = (host(&gamma).iter().zip(host(&beta)).zip(constants))
            .map(|((gamma, beta), (inv_std, offset))| {
                let scale = gamma * inv_std;
                Affine { factors: [scale, 0.0], constant: beta - offset * scale }
            })
            .collect();
        let input = Centred { values: host(&values), centres: Some(host(&statistics.anchor)) };
        let (output, taken) = match &self.windows {
            Some(windows) => {
                let pooled = pool::forward_mapped(&maps, input, windows);
                (tensor(pooled.values, windows.output()), (pooled.taken, pooled.inputs))
            }
            None => {
                let output = batch_norm::relu(&maps, input, values.shape().dims());
                (tensor(output, x.shape()), Default::default())
            }
        };
        let Moments { mean, variance, statistics } = batch.finish(&self.settings).1;
        let moments = [mean, variance].map(|tensor| host(&contiguous(tensor)).to_vec());
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
        let (shape, values) = (x.shape(), flatten::<Flex>(x));
        let dims = values.shape().dims();
        let input = Centred { values: host(&values), centres: Some(host(&statistics.anchor)) };
        let through_relu = ReluGradient { values: host(&grad), outputs: &maps, x: input };
        let through_pool = self.windows.as_ref().map(|windows| PooledGradient {
            values: host(&grad),
            taken: &taken.0,
            inputs: &taken.1,
            windows,
            x: input,
        });
        let sums = through_pool.map_or_else(|| through_relu.sums(dims), PooledGradient::sums);
        let sums = gradient_lines(&sums, &statistics);
        let for_x = wanted[0].then(|| {
            let empty = shape.num_elements() == 0;
            let projection = project::<Flex>(&sums, gamma.clone(), &statistics, &self.settings, empty);
            let lines = projected_lines(&statistics, &projection);
            let gradient = match through_pool {
                Some(gradient) => gradient.apply(&lines),
                None => through_relu.apply(&lines, dims),
            };
            tensor(gradient, shape)
        });
        let Gradients { input, gamma, beta } = Gradients::<Flex>::new(for_x, sums, &gamma);
        [input, Some(gamma), Some(beta)]
    }
}
