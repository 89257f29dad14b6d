//! Moves gradients between a module, as Burn keeps them, and the buckets.

use super::{buckets::BucketPlan, in_flight::InFlightReduction};
use crate::{Error, Result};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

fn became_trainable(id: ParamId) -> Error {
    Error::Invalid(format!(
        "parameter {id} became trainable after the gradient buckets were created: create a new reducer"
    ))
}

/// Writes every gradient that did not arrive during backward into its bucket, and compares the others with
/// backward's result. With `keep`, `grads` are not consumed.
///
/// # Errors
/// If a parameter has become trainable.
pub(super) fn collect<M: Module>(
    reduction: &InFlightReduction,
    grads: &mut GradientsParams,
    module: &M,
    keep: bool,
) -> Result<()> {
    let mut collect = Collect { reduction, grads, keep, failure: None };
    module.visit(&mut collect);
    collect.failure.map_or(Ok(()), Err)
}

struct Collect<'a> {
    reduction: &'a InFlightReduction,
    grads: &'a mut GradientsParams,
    keep: bool,
    failure: Option<Error>,
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if !param.is_require_grad() || self.failure.is_some() {
            return;
        }
        self.reduction.with(|buckets| match buckets.plan.slot_of(param.id) {
            Some(slot) => {
                let device = param.base().device().inner();
                buckets.collect::<D>(slot, self.grads, param.id, self.keep, device);
            }
            None => self.failure = Some(became_trainable(param.id)),
        });
    }
}

/// Averaged gradients of `module`, without those of parameters that no rank used. `parts` are theirs, by slot.
pub(super) fn scatter<M: Module>(
    plan: &BucketPlan,
    parts: Vec<Option<Tensor<1>>>,
    users: &[usize],
    module: &M,
) -> GradientsParams {
    let mut scatter = Scatter { plan, parts, users, grads: GradientsParams::new() };
    module.visit(&mut scatter);
    scatter.grads
}

struct Scatter<'a> {
    plan: &'a BucketPlan,
    parts: Vec<Option<Tensor<1>>>,
    users: &'a [usize],
    grads: GradientsParams,
}

impl ModuleVisitor for Scatter<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.plan.slot_to_fill(param, self.users) else { return };
        let Some(grad) = self.parts[slot].clone() else { return };
        let value = param.base();
        let grad = grad.reshape(value.shape());
        // A gradient is on the plain device under the autodiff one.
        let device = value.device().inner();
        let grad = if grad.device() == device { grad } else { grad.to_device(&device) };
        self.grads.register::<D>(param.id, grad.cast(FloatDType::from(value.dtype())));
    }
}
