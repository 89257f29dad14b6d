//! Gradients of batches that are not synchronised, kept on their device until the next synchronised step.

use super::{
    buckets::BucketPlan,
    read::{f32s, read},
};
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
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

/// Sum of gradients, each multiplied by its number of samples.
#[derive(Default, Debug)]
pub(super) struct AccumulatedGradients {
    grads: GradientsParams,
    batches: usize,
    samples: usize,
}

impl AccumulatedGradients {
    /// Adds the gradients of a mean over `samples`. Gradients of a batch without samples are ignored.
    pub fn add<M: Module>(&mut self, grads: GradientsParams, module: &M, samples: usize) {
        self.batches += 1;
        self.samples += samples;
        if samples > 0 {
            let weights = Weights { own: samples as f32, accumulated: Some(1.0) };
            self.grads = combine(std::mem::take(&mut self.grads), grads, module, weights);
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
        grads: GradientsParams,
        module: &M,
        weights: Weights,
    ) -> GradientsParams {
        let accumulated = std::mem::take(self);
        combine(accumulated.grads, grads, module, weights)
    }

    /// Writes the accumulated gradients into zeroed buckets and marks the parameters that have one.
    ///
    /// # Errors
    /// If a gradient cannot be read from its device.
    pub fn fill<M: Module>(
        &self,
        module: &M,
        plan: &BucketPlan,
        buffers: &mut [Vec<f32>],
    ) -> Result<Vec<bool>> {
        let used = vec![false; plan.slots.len()];
        if self.is_empty() {
            return Ok(used);
        }
        let mut fill = Fill { grads: &self.grads, plan, buffers, used, failure: None };
        module.visit(&mut fill);
        fill.failure.map_or(Ok(fill.used), Err)
    }

    /// Accumulated gradients in row-major order, one for each slot of the plan, on their device.
    pub fn flat<M: Module>(&self, module: &M, plan: &BucketPlan) -> Vec<Option<Tensor<1>>> {
        let mut flat = Flatten { grads: &self.grads, plan, flat: vec![None; plan.slots.len()] };
        if !self.is_empty() {
            module.visit(&mut flat);
        }
        flat.flat
    }
}

struct Flatten<'a> {
    grads: &'a GradientsParams,
    plan: &'a BucketPlan,
    flat: Vec<Option<Tensor<1>>>,
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.plan.slot_of(param.id) else { return };
        let grad = self.grads.get::<D>(param.id);
        self.flat[index] = grad.map(|grad| grad.reshape([self.plan.slots[index].range.len()]));
    }
}

/// Weighted sum of `accumulated` and `own`, for every parameter that has either.
fn combine<M: Module>(
    accumulated: GradientsParams,
    own: GradientsParams,
    module: &M,
    weights: Weights,
) -> GradientsParams {
    let mut combine = Combine { accumulated, own, weights, sum: GradientsParams::new() };
    module.visit(&mut combine);
    combine.sum
}

struct Combine {
    accumulated: GradientsParams,
    own: GradientsParams,
    weights: Weights,
    sum: GradientsParams,
}

impl ModuleVisitor for Combine {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let accumulated = self.accumulated.remove::<D>(param.id);
        let accumulated = accumulated.map(|grad| match self.weights.accumulated {
            Some(1.0) | None => grad,
            Some(weight) => grad.mul_scalar(weight),
        });
        // The gradient of padding has an arbitrary value, possibly NaN.
        let own = self.own.remove::<D>(param.id).filter(|_| self.weights.own > 0.0);
        let own = own.map(|grad| grad.mul_scalar(self.weights.own));
        let sum = match (accumulated, own) {
            (Some(accumulated), Some(own)) => accumulated + own,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return,
        };
        self.sum.register::<D>(param.id, sum);
    }
}

struct Fill<'a> {
    grads: &'a GradientsParams,
    plan: &'a BucketPlan,
    buffers: &'a mut [Vec<f32>],
    used: Vec<bool>,
    failure: Option<Error>,
}

impl Fill<'_> {
    fn put<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(index) = self.plan.slot_of(param.id) else { return Ok(()) };
        let Some(grad) = self.grads.get::<D>(param.id) else { return Ok(()) };
        let slot = &self.plan.slots[index];
        let data = read(grad)?;
        let values = f32s(&data).map_err(|reason| {
            let what = format!("reading the gradient of {}", slot.path);
            Error::Io { what, reason }
        })?;
        self.buffers[slot.bucket][slot.range.clone()].copy_from_slice(&values);
        self.used[index] = true;
        Ok(())
    }
}

impl ModuleVisitor for Fill<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if self.failure.is_none() {
            self.failure = self.put(param).err();
        }
    }
}
