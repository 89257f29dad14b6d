//! Gradients of batches that are not synchronised, kept on their device until the next synchronised step.

use super::buckets::BucketPlan;
use crate::parameters::{TensorList, TensorMap, put, take};
use burn::module::Module;
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Weights of this rank's gradients in the mean over the global batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Weights {
    /// Weight of this step's gradient, which is a mean over this rank's samples. 0 for padding, whose gradients
    /// are ignored.
    pub own: f32,
    /// Weight of the accumulated gradients, which are sums over samples.
    pub accumulated: Option<f32>,
}

impl Weights {
    /// The weighted sum of a parameter's gradients; `None` if it has none.
    pub fn sum(self, own: Option<Tensor<1>>, accumulated: Option<Tensor<1>>) -> Option<Tensor<1>> {
        let weighted =
            |grad: Tensor<1>, weight: f32| if weight == 1.0 { grad } else { grad.mul_scalar(weight) };
        let own = own.map(|own| weighted(own, self.own));
        let accumulated = accumulated.map(|sum| weighted(sum, self.accumulated.unwrap_or(1.0)));
        match (accumulated, own) {
            (Some(sum), Some(own)) => Some(sum + own),
            (one, None) | (None, one) => one,
        }
    }
}

/// Sum of gradients, each multiplied by its number of samples.
#[derive(Default, Debug)]
pub(super) struct AccumulatedGradients {
    sums: TensorList,
    batches: usize,
    samples: usize,
}

impl AccumulatedGradients {
    /// Adds the gradients of a mean over `samples`. Gradients of a batch without samples are ignored.
    pub fn add<M: Module>(&mut self, mut grads: GradientsParams, module: &M, samples: usize) {
        self.batches += 1;
        self.samples += samples;
        if samples > 0 {
            let weights = Weights { own: samples as f32, accumulated: Some(1.0) };
            let sums = std::mem::take(&mut self.sums);
            self.sums = combine(sums, take(&mut grads, module), weights);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    pub fn has_samples(&self) -> bool {
        self.samples > 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// Mean of `grads` and the accumulated gradients, for one rank. Clears the accumulated gradients.
    pub fn mean<M: Module>(
        &mut self,
        mut grads: GradientsParams,
        module: &M,
        weights: Weights,
    ) -> GradientsParams {
        let sums = std::mem::take(self).sums;
        let mut mean = GradientsParams::new();
        put(&mut mean, combine(sums, take(&mut grads, module), weights), module);
        mean
    }

    /// Accumulated gradients in row-major order, one for each slot of the plan, on their device.
    pub fn flat(&self, plan: &BucketPlan) -> Vec<Option<Tensor<1>>> {
        let mut flat = vec![None; plan.slots.len()];
        for (id, grad) in &self.sums {
            if let Some(index) = plan.slot_of(*id) {
                flat[index] = Some(grad.clone().reshape([plan.slots[index].range.len()]));
            }
        }
        flat
    }
}

/// Adds `a` and `b` for every parameter of `module` for which either has a gradient.
pub(crate) fn add<M: Module>(module: &M, mut a: GradientsParams, mut b: GradientsParams) -> GradientsParams {
    let weights = Weights { own: 1.0, accumulated: None };
    let sums = combine(take(&mut a, module), take(&mut b, module), weights);
    put(&mut a, sums, module);
    a
}

/// Weighted sum of `accumulated` and `own`, for every parameter that has either.
fn combine(accumulated: TensorList, own: TensorList, weights: Weights) -> TensorList {
    // The gradient of padding has an arbitrary value, possibly NaN.
    let mut own: TensorMap = own.into_iter().filter(|_| weights.own > 0.0).collect();
    let with_own = |(id, sum)| Some((id, weights.sum(own.remove(&id), Some(sum))?));
    let mut sums: TensorList = accumulated.into_iter().filter_map(with_own).collect();
    sums.extend(own.into_iter().filter_map(|(id, own)| Some((id, weights.sum(Some(own), None)?))));
    sums
}
