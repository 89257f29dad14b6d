//! The state of an optimizer that is divided over the ranks: collected for checkpoints, and divided when loaded.
//!
//! Checkpoints are therefore those of a run without division, and can be loaded at any world size.

use super::{Reducer, hook::BucketSender};
use crate::{Error, ProcessGroup, Result};
use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_pack::{Reader, Writer};
use std::{collections::BTreeMap, fmt::Display};

impl Reducer {
    /// Returns the optimizer's whole state on rank 0, and `record` on the other ranks.
    ///
    /// Every rank must call it. Without [`shard_optimizer`](super::ReducerOptions::shard_optimizer), `record` is
    /// already whole and is returned.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be read.
    pub fn consolidate(&self, record: OptimizerRecord) -> Result<OptimizerRecord> {
        if self.plan.shards.is_none() {
            return Ok(record);
        }
        let parts = self.gather_records(record.into_bytes().map_err(unreadable)?.to_vec())?;
        read(merge(parts, Some)?)
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
            Some(slot) => shards.is_own(slot),
            None => shards.rank == 0,
        };
        read(merge(vec![whole], |id| is_kept(id).then_some(id))?)
    }
}

fn unreadable(error: impl Display) -> Error {
    Error::Io { what: "packing the optimizer's state".into(), reason: error.to_string() }
}

fn read(bytes: Vec<u8>) -> Result<OptimizerRecord> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use burn::{
        nn::LinearConfig,
        optim::{AdamConfig, GradientsParams},
        tensor::{Device, Tensor},
    };

    #[test]
    fn parts_of_a_record_are_the_whole() {
        let device = Device::flex().autodiff();
        let layer = LinearConfig::new(3, 2).init(&device);
        let loss = layer.forward(Tensor::<2>::ones([1, 3], &device)).sum();
        let grads = GradientsParams::from_grads(loss.backward(), &layer);
        let mut optimizer = AdamConfig::new().init();
        let layer = optimizer.step(0.1, layer, grads);
        let whole = optimizer.to_record().into_bytes().expect("a record").to_vec();
        let weight = layer.weight.id.val();
        let part = |of_weight| {
            merge(vec![whole.clone()], |id| ((id == weight) == of_weight).then_some(id)).expect("a part")
        };
        let [weights, others] = [true, false].map(part);
        let count = |bytes: &[u8]| read(bytes.to_vec()).expect("a record").len();
        assert_eq!([count(&weights), count(&others)], [2, 2]);
        assert_eq!(count(&merge(vec![weights, others], Some).expect("a record")), count(&whole));
    }
}
