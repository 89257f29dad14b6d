//! The state of an optimizer that is divided over the ranks: collected for checkpoints, and divided when loaded.
//!
//! Checkpoints are therefore those of a run without division, and can be loaded at any world size.

use super::{Reducer, buckets::BucketPlan, shards::Shards};
use crate::{Error, Result};
use burn::module::ParamId;
use burn::optim::OptimizerRecord;
use burn::tensor::Bytes;
use burn_pack::{Reader, Writer};
use std::fmt::Display;

impl Reducer {
    /// Returns the optimizer's whole state on rank 0, and `record` on the other ranks.
    ///
    /// Every rank must call it. Without [`shard_optimizer`](super::ReducerOptions::shard_optimizer), `record` is
    /// already whole and is returned.
    ///
    /// # Errors
    /// If the group fails, or a record cannot be read.
    pub fn consolidate(&self, record: OptimizerRecord) -> Result<OptimizerRecord> {
        let (Some(_), Some(sender)) = (&self.plan.shards, &self.sender) else { return Ok(record) };
        let group = &sender.group;
        let own = record.into_bytes().map_err(unreadable)?.to_vec();
        let lengths = group.all_gather(&[own.len() as i64])?.concat();
        if group.rank() > 0 {
            group.send(&own, 0)?;
            return read(own);
        }
        let mut parts = vec![own];
        for (rank, length) in lengths.into_iter().enumerate().skip(1) {
            let mut part = vec![0u8; length as usize];
            group.recv(&mut part, rank)?;
            parts.push(part);
        }
        read(merge(parts, |_| true)?)
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
        read(merge(vec![whole], |id| is_kept(&self.plan, shards, id))?)
    }
}

/// Whether this rank keeps the state of a parameter. That of one which is no longer trained is kept by rank 0.
fn is_kept(plan: &BucketPlan, shards: &Shards, id: u64) -> bool {
    plan.slot_of(ParamId::from(id)).map_or(shards.rank() == 0, |slot| shards.is_own(slot))
}

fn unreadable(error: impl Display) -> Error {
    Error::Io { what: "packing the optimizer's state".into(), reason: error.to_string() }
}

fn read(bytes: Vec<u8>) -> Result<OptimizerRecord> {
    OptimizerRecord::from_bytes(Bytes::from_bytes_vec(bytes)).map_err(unreadable)
}

/// The record with the state of all `parts` for the parameters for which `keep` returns true.
///
/// In a record of Burn, the names of tensors, scalars and paths begin with a parameter's number.
fn merge(parts: Vec<Vec<u8>>, keep: impl Fn(u64) -> bool) -> Result<Vec<u8>> {
    let kept = |name: &str| name.split('.').next().and_then(|id| id.parse().ok()).is_none_or(&keep);
    let (mut tensors, mut scalars, mut paths) = (Vec::new(), Vec::new(), Vec::new());
    for part in parts {
        let reader = Reader::from_bytes(Bytes::from_bytes_vec(part)).map_err(unreadable)?;
        scalars.extend(reader.scalars().clone().into_iter().filter(|(name, _)| kept(name)));
        paths.extend(reader.metadata().clone().into_iter().filter(|(name, _)| kept(name)));
        for tensor in reader.into_tensors().map_err(unreadable)? {
            let (name, dtype, shape, id, bytes) = tensor.into_parts().map_err(unreadable)?;
            if kept(&name) {
                tensors.push(burn_pack::Tensor::new(name, dtype, shape, id, bytes));
            }
        }
    }
    let writer = scalars.iter().fold(Writer::new(tensors), |writer, (key, value)| writer.with_scalar(key, *value));
    let writer = paths.iter().fold(writer, |writer, (key, value)| writer.with_metadata(key, value));
    Ok(writer.into_bytes().map_err(unreadable)?.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::{
        module::Module,
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
        let part = |of_weight| merge(vec![whole.clone()], |id| (id == weight) == of_weight).expect("a part");
        let [weights, others] = [true, false].map(part);
        let count = |bytes: &[u8]| read(bytes.to_vec()).expect("a record").len();
        assert_eq!([count(&weights), count(&others)], [2, 2]);
        let merged = merge(vec![weights, others], |_| true).expect("a record");
        assert_eq!(merged, merge(vec![whole], |_| true).expect("a record"));
        assert_eq!(layer.num_params(), 8);
    }
}
