//! Exchange of updated parameters, if each rank updates a shard of them.

use super::{
    Reducer,
    read::{Values, on_host},
};
use crate::{
    Error, ProcessGroup, Result,
    exchange::Kind,
    parameters::{replace, values},
    tensor,
};
use burn::module::{Module, ParamId};
use burn::tensor::{DType, Device, Tensor};

/// Verifies that all trainable parameters can be sent.
///
/// # Errors
/// If one is not f32.
pub(super) fn check<M: Module>(module: &M) -> Result<()> {
    let trainable = values(module, true);
    match trainable.iter().map(|(_, value)| value.dtype()).find(|dtype| *dtype != DType::F32) {
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
        self.plan.shards.as_ref().map_or(&[], |shards| &shards.sizes)
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
        let trainable = values(&module, true);
        let device = trainable.first().map_or_else(Device::flex, |(_, value)| value.device());
        let mut own = vec![None; plan.slots.len()];
        for (id, value) in trainable {
            if let Some(slot) = plan.slot_of(id).filter(|slot| plan.is_updated(*slot)) {
                own[slot] = Some(value.reshape([plan.slots[slot].range.len()]));
            }
        }
        let mut buckets = Vec::with_capacity(plan.buckets());
        for (bucket, members) in plan.members.iter().enumerate() {
            let Some(owner) = plan.owner(bucket) else { break };
            let values: Vec<_> = members.iter().filter_map(|slot| own[*slot].take()).collect();
            let is_foreign = plan.is_foreign(bucket);
            let sent = (!is_foreign).then(|| tensor::concatenate(values, 1.0, None));
            let received = if self.on_device {
                let length = tensor::concatenated_length(&plan.lengths(bucket));
                let sent = sent.unwrap_or_else(|| Tensor::zeros([length], (&device, DType::F32)));
                tensor::run_in_step(sent, &sender.group, Kind::Broadcast(owner))?
            } else {
                broadcast_on_host(sent, plan.length(bucket), &sender.group, owner)?
            };
            buckets.push(is_foreign.then_some(received));
        }
        let (parts, _) = plan.split(buckets, 0);
        Ok(replace(module, |id, _| parts[plan.slot_of(id)?].clone()))
    }
}

/// The values of `sent` `[length]` of rank `root`, in host memory.
fn broadcast_on_host(
    sent: Option<Tensor<1>>,
    length: usize,
    group: &ProcessGroup,
    root: usize,
) -> Result<Tensor<1>> {
    let values = sent.map(Values::read).transpose()?.map(Values::into_vec);
    let mut values = values.unwrap_or_else(|| vec![0.0; length]);
    group.broadcast(&mut values, root)?;
    Ok(on_host(values))
}
