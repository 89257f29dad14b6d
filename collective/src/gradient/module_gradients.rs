//! Moves gradients between a module, as Burn keeps them, and the buckets.

use super::{buckets::BucketPlan, gradient_list::take, in_flight::InFlightReduction};
use crate::{Error, ProcessGroup, ReduceOp, Result, tensor};
use burn::module::{Module, ModuleVisitor, Param, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::{DType, FloatDType, Tensor};

fn became_trainable(id: ParamId) -> Error {
    Error::Invalid(format!(
        "parameter {id} became trainable after the gradient buckets were created: create a new reducer"
    ))
}

/// Writes every gradient that did not arrive during backward into its bucket, and compares the others with
/// backward's result. With `keep`, `grads` are not consumed.
///
/// # Errors
/// If a gradient cannot be read, or a parameter has become trainable.
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

impl Collect<'_> {
    fn take<const D: usize>(&mut self, param: &Param<Tensor<D>>) -> Result<()> {
        let Some(slot) = self.reduction.slot_of(param.id) else {
            return Err(became_trainable(param.id));
        };
        if !self.reduction.has(slot) {
            let grad =
                if self.keep { self.grads.get::<D>(param.id) } else { self.grads.remove::<D>(param.id) };
            if self.reduction.write(slot, grad, &param.base().device().inner())? {
                return Ok(());
            }
        }
        self.reduction.compare(slot, || self.grads.get::<D>(param.id))
    }
}

impl ModuleVisitor for Collect<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        if param.is_require_grad() && self.failure.is_none() {
            self.failure = self.take(param).err();
        }
    }
}

/// Averaged gradients of `module`, without those of parameters that no rank used.
///
/// On a CPU they are views of the buckets.
pub(super) fn scatter<M: Module>(
    plan: &BucketPlan,
    buckets: Vec<Option<Tensor<1>>>,
    users: &[usize],
    module: &M,
) -> GradientsParams {
    let mut scatter = Scatter { plan, buckets, users, grads: GradientsParams::new() };
    module.visit(&mut scatter);
    scatter.grads
}

struct Scatter<'a> {
    plan: &'a BucketPlan,
    buckets: Vec<Option<Tensor<1>>>,
    users: &'a [usize],
    grads: GradientsParams,
}

impl ModuleVisitor for Scatter<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.plan.slot_to_fill(param, self.users) else { return };
        let Some(bucket) = &self.buckets[slot.bucket] else { return };
        let value = param.base();
        let grad = bucket.clone().slice(slot.range.clone()).reshape(value.shape());
        // A gradient is on the plain device under the autodiff one.
        let device = value.device().inner();
        let grad = if grad.device() == device { grad } else { grad.to_device(&device) };
        self.grads.register::<D>(param.id, grad.cast(FloatDType::from(value.dtype())));
    }
}

/// Sums of the weighted `grads` over all ranks, without those of parameters that no rank uses.
///
/// # Errors
/// If the group fails.
pub(crate) fn all_reduce<M: Module>(
    plan: &BucketPlan,
    group: &ProcessGroup,
    mut grads: GradientsParams,
    module: &M,
) -> Result<GradientsParams> {
    let device = module.devices().into_iter().next().unwrap_or_default();
    let device = if device.is_autodiff() { device.inner() } else { device };
    let mut flat: Vec<Option<Tensor<1>>> = vec![None; plan.slots.len()];
    for (id, grad) in take(&mut grads, module) {
        if let Some(slot) = plan.slot_of(id) {
            flat[slot] = Some(grad.reshape([plan.slots[slot].range.len()]));
        }
    }
    let mut flags: Vec<f32> = flat.iter().map(|grad| f32::from(u8::from(grad.is_some()))).collect();
    let mut buckets = Vec::new();
    for members in &plan.members {
        let zeros = |slot: &usize| Tensor::zeros([plan.slots[*slot].range.len()], (&device, DType::F32));
        let parts: Vec<_> =
            members.iter().map(|slot| flat[*slot].take().unwrap_or_else(|| zeros(slot))).collect();
        buckets.push(match parts.is_empty() {
            true => None,
            false => Some(tensor::all_reduce(tensor::concatenate(parts, 1.0), group, ReduceOp::Sum)?),
        });
    }
    group.all_reduce(&mut flags, ReduceOp::Sum)?;
    let users: Vec<usize> = flags.iter().map(|ranks| *ranks as usize).collect();
    Ok(scatter(plan, buckets, &users, module))
}
