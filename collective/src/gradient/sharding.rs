//! Division of the optimizer's state over the ranks: the exchange of updated parameters, and the state in checkpoints.
//!
//! A checkpoint is that of a run without division, and can be loaded at any world size.

use super::{Reducer, hook::BucketSender};
use crate::{
    Error, ProcessGroup, Result,
    exchange::Kind,
    parameters::{replace, values},
    tensor,
};
use burn::module::{Module, ParamId};
use burn::optim::OptimizerRecord;
use burn::tensor::{Bytes, DType};
use burn_pack::{Reader, Writer};
use std::{collections::BTreeMap, fmt::Display};

/// Verifies that all trainable parameters can be sent.
///
/// # Errors
/// If one is not f32.
pub(super) fn check_dtypes<M: Module>(module: &M) -> Result<()> {
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

    /// Returns the optimizer's whole state on rank 0, and `record` on the other ranks.
    ///
    /// Every rank must call it. Without [`shard_optimizer`](super::ReducerOptions::shard_optimizer), `record` is
    /// already whole and is returned.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be read.
    pub fn consolidate(&self, record: OptimizerRecord) -> Result<OptimizerRecord> {
        if !self.is_sharded() {
            return Ok(record);
        }
        let parts = self.gather_records(record.into_bytes().map_err(unreadable)?.to_vec())?;
        unpacked(merge(parts, Some)?)
    }

    /// The optimizer records of all ranks on rank 0, with its identities of parameters; `own` alone on the other ranks.
    ///
    /// Every rank must call it.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be read.
    pub(crate) fn gather_records(&self, own: Vec<u8>) -> Result<Vec<Vec<u8>>> {
        let Some(BucketSender { group, .. }) = &self.sender else { return Ok(vec![own]) };
        let own = self.with_ids_of_rank_0(own, group)?;
        let lengths = group.all_gather(&[own.len() as i64])?.concat();
        if group.rank() > 0 {
            group.send(&own, 0)?;
            return Ok(vec![own]);
        }
        let mut records = vec![own];
        for (rank, length) in lengths.into_iter().enumerate().skip(1) {
            let mut record = vec![0u8; length as usize];
            group.recv(&mut record, rank)?;
            records.push(record);
        }
        Ok(records)
    }

    /// The record with rank 0's identities of parameters, which are random numbers of each rank.
    fn with_ids_of_rank_0(&self, record: Vec<u8>, group: &ProcessGroup) -> Result<Vec<u8>> {
        let mut ids = vec![0i64; self.plan.slots.len()];
        self.plan.by_id.iter().for_each(|(id, slot)| ids[*slot] = id.val() as i64);
        group.broadcast(&mut ids, 0)?;
        merge(vec![record], |id| match self.plan.slot_of(ParamId::from(id)) {
            Some(slot) => Some(ids[slot] as u64),
            None => (group.rank() == 0).then_some(id),
        })
    }

    /// Returns the part of the optimizer's whole state that belongs to this rank's shard.
    ///
    /// Without [`shard_optimizer`](super::ReducerOptions::shard_optimizer), that is all of it.
    ///
    /// # Errors
    /// If the record cannot be read.
    pub fn keep_shard(&self, record: OptimizerRecord) -> Result<OptimizerRecord> {
        let Some(shards) = &self.plan.shards else { return Ok(record) };
        let whole = record.into_bytes().map_err(unreadable)?.to_vec();
        // Rank 0 keeps the state of parameters that are no longer trained.
        let is_kept = |id| match self.plan.slot_of(ParamId::from(id)) {
            Some(slot) => self.plan.is_updated(slot),
            None => shards.rank == 0,
        };
        unpacked(merge(vec![whole], |id| is_kept(id).then_some(id))?)
    }
}

fn unreadable(error: impl Display) -> Error {
    Error::Io { what: "packing the optimizer's state".into(), reason: error.to_string() }
}

fn unpacked(bytes: Vec<u8>) -> Result<OptimizerRecord> {
    OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes)).map_err(unreadable)
}

/// The record with the state of all `parts`, for parameters with the ids that `rename` returns.
///
/// In a record of Burn, the names of tensors, scalars and paths begin with a parameter's id.
fn merge(parts: Vec<Vec<u8>>, rename: impl Fn(u64) -> Option<u64>) -> Result<Vec<u8>> {
    let renamed = |name: &str| {
        let id = name.split('.').next().unwrap_or_default();
        let new = rename(id.parse().ok()?)?;
        Some((format!("{new}{}", &name[id.len()..]), new))
    };
    let (mut tensors, mut scalars, mut paths) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for part in parts {
        let reader = Reader::from_bytes(Bytes::from_bytes_vec(part)).map_err(unreadable)?;
        scalars.extend(reader.scalars().iter().filter_map(|(name, value)| Some((renamed(name)?.0, *value))));
        let named =
            reader.metadata().iter().filter_map(|(name, path)| Some((renamed(name)?.0, path.clone())));
        paths.extend(named);
        for tensor in reader.into_tensors().map_err(unreadable)? {
            let (name, dtype, shape, _, bytes) = tensor.into_parts().map_err(unreadable)?;
            if let Some((name, id)) = renamed(&name) {
                tensors.push(burn_pack::Tensor::new(name, dtype, shape, Some(id), bytes));
            }
        }
    }
    let writer = Writer::new(tensors);
    let writer = scalars.iter().fold(writer, |writer, (key, value)| writer.with_scalar(key, *value));
    let writer = paths.iter().fold(writer, |writer, (key, value)| writer.with_metadata(key, value));
    Ok(writer.into_bytes().map_err(unreadable)?.to_vec())
}
