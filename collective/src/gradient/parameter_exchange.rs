//! Exchange of updated parameters, if each rank updates a shard of them.

use super::{Reducer, buckets::BucketPlan, host_buckets::on_host, read::f32s};
use crate::{Error, ProcessGroup, Result, device_error::read_data, tensor, tensor::exchange::Kind};
use burn::module::{Module, ModuleMapper, ModuleVisitor, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

/// Verifies that all trainable parameters can be sent.
///
/// # Errors
/// If one is not f32.
pub(super) fn check<M: Module>(module: &M) -> Result<()> {
    struct Check(Option<DType>);
    impl ModuleVisitor for Check {
        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            if param.is_require_grad() {
                self.0 = self.0.or(Some(param.val().dtype()).filter(|dtype| *dtype != DType::F32));
            }
        }
    }
    let mut check = Check(None);
    module.visit(&mut check);
    match check.0 {
        None => Ok(()),
        Some(dtype) => Err(Error::Invalid(format!(
            "a sharded optimizer needs parameters in f32, not {dtype:?}: turn off shard_optimizer (--shard-optimizer)"
        ))),
    }
}

impl Reducer {
    /// Whether each rank updates a shard of the parameters only.
    pub fn is_sharded(&self) -> bool {
        self.plan.shards.is_some()
    }

    /// The parameters that other ranks update.
    pub(crate) fn received(&self) -> Vec<ParamId> {
        let ids = self.plan.by_id.iter().filter(|(_, slot)| !self.plan.is_updated(**slot));
        ids.map(|(id, _)| *id).collect()
    }

    /// Number of elements of the parameters that each rank updates; empty without
    /// [`shard_optimizer`](super::ReducerOptions::shard_optimizer).
    pub fn shard_sizes(&self) -> &[usize] {
        self.plan.shards.as_ref().map_or(&[], |shards| shards.sizes())
    }

    /// Returns `module` with the parameters that the other ranks have updated.
    ///
    /// Every rank must call it after its optimizer step. Without
    /// [`shard_optimizer`](super::ReducerOptions::shard_optimizer) it does nothing.
    ///
    /// # Errors
    /// If the group or a device fails.
    pub fn share_parameters<M: Module>(&self, module: M) -> Result<M> {
        let (true, Some(sender)) = (self.is_sharded(), &self.sender) else { return Ok(module) };
        let plan = &self.plan;
        let mut own = Own { plan, values: vec![None; plan.slots.len()], device: Device::flex() };
        module.visit(&mut own);
        let mut buckets = Vec::with_capacity(plan.buckets());
        for (bucket, members) in plan.members.iter().enumerate() {
            let Some(owner) = plan.owner(bucket) else { break };
            let values: Vec<_> = members.iter().filter_map(|slot| own.values[*slot].take()).collect();
            let is_foreign = plan.is_foreign(bucket);
            let sent = (!is_foreign).then(|| tensor::concatenate(values, 1.0));
            let length = plan.length(bucket);
            let received = if self.on_device {
                let sent = sent.unwrap_or_else(|| Tensor::zeros([length], (&own.device, DType::F32)));
                tensor::run_in_step(sent, &sender.group, Kind::Broadcast(owner))?
            } else {
                broadcast_on_host(sent, length, &sender.group, owner)?
            };
            buckets.push(is_foreign.then_some(received));
        }
        Ok(module.map(&mut Receive { plan, buckets }))
    }
}

/// The values of `sent` `[length]` of rank `root`, in host memory.
fn broadcast_on_host(
    sent: Option<Tensor<1>>,
    length: usize,
    group: &ProcessGroup,
    root: usize,
) -> Result<Tensor<1>> {
    let mut values = match sent.map(read_data).transpose()? {
        Some(data) => {
            let values = f32s(&data).map(|values| values.into_owned());
            values.map_err(|reason| Error::Io { what: "reading a parameter".into(), reason })?
        }
        None => vec![0.0; length],
    };
    group.broadcast(&mut values, root)?;
    Ok(on_host(values))
}

/// The parameters that this rank updates, flat, by slot, and their device.
struct Own<'a> {
    plan: &'a BucketPlan,
    values: Vec<Option<Tensor<1>>>,
    device: Device,
}

impl ModuleVisitor for Own<'_> {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let Some(slot) = self.plan.slot_of(param.id) else { return };
        let value = param.val().inner();
        self.device = value.device();
        if self.plan.is_updated(slot) {
            let elements = value.shape().num_elements();
            self.values[slot] = Some(value.reshape([elements]));
        }
    }
}

/// Replaces the parameters that other ranks have updated.
struct Receive<'a> {
    plan: &'a BucketPlan,
    /// `None` for a bucket of this rank.
    buckets: Vec<Option<Tensor<1>>>,
}

impl ModuleMapper for Receive<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let slot = self.plan.slot_of(param.id).map(|slot| &self.plan.slots[slot]);
        let found = slot.and_then(|slot| Some((slot, self.buckets.get(slot.bucket)?.clone()?)));
        let Some((slot, bucket)) = found else { return param };
        param.map(|old| {
            let trained = old.is_require_grad();
            let value = bucket.slice(slot.range.clone()).reshape(old.shape());
            let value = value.to_device(&old.device().without_autodiff());
            Tensor::from_inner(value).set_require_grad(trained)
        })
    }
}
