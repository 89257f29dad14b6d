//! Exchange of updated parameters, if each rank updates a shard of them.

use super::Reducer;
use crate::{
    Error, Result,
    exchange::Kind,
    parameters::{replace, values},
    tensor,
};
use burn::module::{Module, ParamId};
use burn::tensor::DType;

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
        let mut own = vec![None; plan.slots.len()];
        for (id, value) in values(&module, true) {
            if let Some(slot) = plan.slot_of(id) {
                own[slot] = Some(value.reshape([plan.slots[slot].range.len()]));
            }
        }
        let mut buckets = Vec::with_capacity(plan.buckets());
        for (bucket, members) in plan.members.iter().enumerate() {
            let Some(owner) = plan.owner(bucket) else { break };
            let values = members.iter().filter_map(|slot| own[*slot].take()).collect();
            let sent = tensor::concatenate(values, 1.0, None);
            let received = tensor::run_in_step(sent, &sender.group, Kind::Broadcast(owner))?;
            buckets.push(plan.is_foreign(bucket).then_some(received));
        }
        let (parts, _) = plan.split(buckets, 0);
        Ok(replace(module, |id, _| parts[plan.slot_of(id)?].clone()))
    }
}
