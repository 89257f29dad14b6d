//! Buckets in device memory: where the group exchanges data on the ranks' devices, gradients never
//! come to the host.
//!
//! They are taken when backward has been launched, which is long before the device is through with
//! it, and one collective carries a whole bucket. What is small and needed on the host, totals and
//! which parameters were used, travels there meanwhile.

use super::buckets::Plan;
use crate::{ProcessGroup, ReduceOp, Result, tensor};
use burn::module::{Module, ModuleVisitor, Param};
use burn::optim::GradientsParams;
use burn::tensor::{FloatDType, Tensor};

/// The sums over all ranks of `grads`, which are weighted, without those of parameters that no rank
/// used; and on how many ranks each was. `totals` become sums too.
///
/// # Errors
/// If the group fails.
pub(crate) fn reduce<M: Module>(
    plan: &Plan,
    group: &ProcessGroup,
    grads: GradientsParams,
    module: &M,
    totals: &mut Vec<f32>,
) -> Result<(GradientsParams, Vec<usize>)> {
    let slots = plan.slots.len();
    let mut flatten = Flatten { plan, grads, flat: vec![None; slots], used: vec![false; slots] };
    module.visit(&mut flatten);
    let Flatten { mut flat, used, .. } = flatten;
    let mut buckets = Vec::new();
    for members in &plan.members {
        let parts: Vec<Tensor<1>> = members.iter().filter_map(|slot| flat[*slot].take()).collect();
        if parts.is_empty() {
            buckets.push(None);
            continue;
        }
        buckets.push(Some(tensor::all_reduce(Tensor::cat(parts, 0), group, ReduceOp::Sum)?));
    }
    let own = totals.len();
    totals.extend(used.iter().map(|used| f32::from(u8::from(*used))));
    group.all_reduce(totals, ReduceOp::Sum)?;
    let users: Vec<usize> = totals.split_off(own).iter().map(|ranks| *ranks as usize).collect();
    let mut unflatten = Unflatten { plan, buckets, users: &users, grads: GradientsParams::new() };
    module.visit(&mut unflatten);
    let grads = unflatten.grads;
    Ok((grads, users))
}

struct Flatten<'a> {
    plan: &'a Plan,
    grads: GradientsParams,
    /// In f32, as on the host; zeros where there is none.
    flat: Vec<Option<Tensor<1>>>,
    used: Vec<bool>,
}

impl ModuleVisitor for Flatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(index) = self.plan.slot_of(param.id) else { return };
        if self.flat[index].is_some() {
            return;
        }
        let length = self.plan.slots[index].range.len();
        self.flat[index] = Some(match self.grads.remove::<D>(param.id) {
            Some(grad) => {
                self.used[index] = true;
                grad.reshape([length]).cast(FloatDType::F32)
            }
            None => Tensor::zeros([length], (&param.base().device().inner(), burn::tensor::DType::F32)),
        });
    }
}

struct Unflatten<'a> {
    plan: &'a Plan,
    buckets: Vec<Option<Tensor<1>>>,
    users: &'a [usize],
    grads: GradientsParams,
}

impl ModuleVisitor for Unflatten<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.plan.slot_to_fill(param, self.users) else { return };
        let value = param.base();
        let Some(bucket) = &self.buckets[slot.bucket] else { return };
        let grad = bucket.clone().slice(slot.range.clone()).reshape(value.shape());
        self.grads.register::<D>(param.id, grad.cast(FloatDType::from(value.dtype())));
    }
}
