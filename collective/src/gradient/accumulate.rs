//! Gradients of batches that are not synchronised, kept on their device until a step is.

use super::{buckets::Plan, flight::Weights, host::f32s, visit};
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;

/// Each gradient times its samples, added up.
#[derive(Default, Debug)]
pub(super) struct Carry {
    grads: GradientsParams,
    batches: usize,
}

impl Carry {
    /// Adds the gradients of a mean over `samples`. Those of a batch without samples do not count.
    pub fn add<M: Module>(&mut self, grads: GradientsParams, module: &M, samples: usize) {
        self.batches += 1;
        if samples > 0 {
            let weights = Weights { own: samples as f32, carried: Some(1.0) };
            self.grads = combine(std::mem::take(&mut self.grads), grads, module, weights);
        }
    }

    pub fn is_empty(&self) -> bool {
        self.batches == 0
    }

    pub fn clear(&mut self) {
        *self = Self::default();
    }

    /// The mean of `grads` with what was carried, which is used up; on one rank.
    pub fn mean<M: Module>(
        &mut self,
        grads: GradientsParams,
        module: &M,
        weights: Weights,
    ) -> GradientsParams {
        let carried = std::mem::take(self);
        combine(carried.grads, grads, module, weights)
    }

    /// Writes what is carried into its place in zeroed buckets. Returns for which parameters there
    /// was something.
    ///
    /// # Errors
    /// If it cannot be read from its device.
    pub fn fill<M: Module>(&self, module: &M, plan: &Plan, buffers: &mut [Vec<f32>]) -> Result<Vec<bool>> {
        let used = vec![false; plan.slots.len()];
        if self.is_empty() {
            return Ok(used);
        }
        let mut fill = Fill { grads: &self.grads, plan, buffers, used, failure: None };
        module.visit(&mut fill);
        fill.failure.map_or(Ok(fill.used), Err)
    }
}

/// `carried` × its weight + `own` × its weight, for every parameter that has either.
fn combine<M: Module>(
    carried: GradientsParams,
    own: GradientsParams,
    module: &M,
    weights: Weights,
) -> GradientsParams {
    let mut combine = Combine { carried, own, weights, sum: GradientsParams::new() };
    module.visit(&mut combine);
    combine.sum
}

struct Combine {
    carried: GradientsParams,
    own: GradientsParams,
    weights: Weights,
    sum: GradientsParams,
}

impl ModuleVisitor for Combine {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let carried = self.carried.remove::<D>(param.id);
        let carried = carried.map(|grad| match self.weights.carried {
            Some(1.0) | None => grad,
            Some(weight) => grad.mul_scalar(weight),
        });
        // A gradient of padding may be anything, even no number.
        let own = self.own.remove::<D>(param.id).filter(|_| self.weights.own > 0.0);
        let own = own.map(|grad| grad.mul_scalar(self.weights.own));
        let sum = match (carried, own) {
            (Some(carried), Some(own)) => carried + own,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => return,
        };
        self.sum.register::<D>(param.id, sum);
    }
}

struct Fill<'a> {
    grads: &'a GradientsParams,
    plan: &'a Plan,
    buffers: &'a mut [Vec<f32>],
    used: Vec<bool>,
    failure: Option<Error>,
}

impl Fill<'_> {
    fn put<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(index) = self.plan.slot_of(param.id) else { return Ok(()) };
        let Some(grad) = self.grads.get::<D>(param.id) else { return Ok(()) };
        let slot = &self.plan.slots[index];
        let data = visit::read(grad)?;
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
