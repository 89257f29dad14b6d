//! Gradient buckets: which of a model's trainable parameters are reduced together, and which rank updates them if the
//! optimizer's state is divided.

use crate::{
    module_state::{FloatParam, float_params},
    tensor,
};
use burn::module::{Module, ParamId};
use burn::tensor::Tensor;
use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    mem,
    ops::Range,
};

/// Bucket sizes in bytes, by default those of PyTorch DDP.
///
/// PyTorch's names are `dist._DEFAULT_FIRST_BUCKET_BYTES` and `bucket_cap_mb`. The first bucket is small so that
/// communication starts early. Gradients are counted as `f32`; a bucket is closed by the parameter with which it
/// reaches its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketSizes {
    /// Size of the first bucket in bytes.
    pub first: usize,
    /// Size of every other bucket in bytes.
    pub rest: usize,
}

impl Default for BucketSizes {
    fn default() -> Self {
        Self { first: 1 << 20, rest: 25 << 20 }
    }
}

/// Position of one parameter's gradient in the buckets.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Field names from the root, joined by dots: `conv1.weight`.
    pub path: String,
    pub shape: Vec<usize>,
    pub bucket: usize,
    /// Range of elements of the bucket.
    pub range: Range<usize>,
}

/// Buckets of one model.
///
/// Parameters are laid out in reverse field order, because backward finishes the last layers
/// first. A parameter that occurs twice has one slot.
#[derive(Debug)]
pub(crate) struct BucketPlan {
    /// In field order.
    pub slots: Vec<Slot>,
    pub by_id: HashMap<ParamId, usize>,
    /// The slots of each bucket, in the order of their ranges.
    pub members: Vec<Vec<usize>>,
    /// The ranks that own the parameters, if the optimizer's state is divided. The parameters of a bucket then have one
    /// owner.
    pub shards: Option<Shards>,
}

impl BucketPlan {
    /// Creates the plan for the trainable float parameters of `module`.
    ///
    /// `group` is this rank and the number of ranks over which the optimizer's state is divided.
    pub fn new<M: Module>(module: &M, sizes: BucketSizes, group: Option<(usize, usize)>) -> Self {
        let (mut slots, mut by_id) = (Vec::new(), HashMap::new());
        for FloatParam { id, path, shape, .. } in
            float_params(module).into_iter().filter(|param| param.trainable)
        {
            if let Entry::Vacant(new) = by_id.entry(id) {
                new.insert(slots.len());
                let range = 0..shape.num_elements();
                slots.push(Slot { path, shape: shape.to_vec(), bucket: 0, range });
            }
        }
        let lengths: Vec<usize> = slots.iter().map(|slot| slot.range.len()).collect();
        let shards = group.map(|(rank, ranks)| Shards::new(&lengths, rank, ranks));
        let owner = |slot| shards.as_ref().map_or(0, |shards: &Shards| shards.owners[slot]);
        let mut members: Vec<Vec<usize>> = Vec::new();
        let mut open = vec![Vec::new(); group.map_or(1, |(_, ranks)| ranks)];
        // ANCHOR: assign
        for (index, length) in lengths.iter().enumerate().rev() {
            let bucket: &mut Vec<usize> = &mut open[owner(index)];
            let start = bucket.last().map_or(0, |last| slots[*last].range.end);
            slots[index].range = start..start + length;
            bucket.push(index);
            let cap = if members.is_empty() { sizes.first } else { sizes.rest };
            if (start + length) * size_of::<f32>() >= cap {
                members.push(mem::take(bucket));
            }
        }
        // ANCHOR_END: assign
        open.retain(|bucket| !bucket.is_empty());
        open.sort_by_key(|bucket| Reverse(bucket.last().copied()));
        members.append(&mut open);
        // Without trainable parameters there is one empty bucket, which carries the totals.
        if members.is_empty() {
            members.push(Vec::new());
        }
        for (bucket, members) in members.iter().enumerate() {
            members.iter().for_each(|slot| slots[*slot].bucket = bucket);
        }
        Self { slots, by_id, members, shards }
    }

    /// Slot of a parameter; `None` if it was not trainable when the plan was created.
    pub fn slot_of(&self, id: ParamId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    /// Lengths of the parameters of a bucket, in their order.
    pub fn lengths(&self, bucket: usize) -> Vec<usize> {
        self.members[bucket].iter().map(|slot| self.slots[*slot].range.len()).collect()
    }

    /// The parts of the given buckets, by slot, and what follows them in the last bucket, of length `tail`.
    pub fn split(
        &self,
        buckets: Vec<Option<Tensor<1>>>,
        tail: usize,
    ) -> (Vec<Option<Tensor<1>>>, Option<Tensor<1>>) {
        let (mut parts, mut rest) = (vec![None; self.slots.len()], None);
        for (index, bucket) in buckets.into_iter().enumerate() {
            let mut lengths = self.lengths(index);
            lengths.extend((tail > 0 && index + 1 == self.buckets()).then_some(tail));
            let Some(bucket) = bucket.filter(|_| !lengths.is_empty()) else { continue };
            let mut split = tensor::split(bucket, &lengths).into_iter();
            self.members[index].iter().zip(&mut split).for_each(|(slot, part)| parts[*slot] = Some(part));
            rest = split.next();
        }
        (parts, rest)
    }

    /// Whether this rank updates a parameter.
    pub fn is_updated(&self, slot: usize) -> bool {
        self.shards.as_ref().is_none_or(|shards| shards.owners[slot] == shards.rank)
    }

    /// The rank that updates a bucket's parameters; `None` if every rank does.
    pub fn owner(&self, bucket: usize) -> Option<usize> {
        Some(self.shards.as_ref()?.owners[*self.members[bucket].first()?])
    }

    /// Whether only another rank updates a bucket's parameters.
    pub fn is_foreign(&self, bucket: usize) -> bool {
        self.members[bucket].first().is_some_and(|slot| !self.is_updated(*slot))
    }

    /// Number of elements of a bucket.
    pub fn length(&self, bucket: usize) -> usize {
        self.members[bucket].last().map_or(0, |slot| self.slots[*slot].range.end)
    }

    pub fn buckets(&self) -> usize {
        self.members.len()
    }
}

/// The owner of each parameter.
///
/// Whole parameters have owners, so that every optimizer works on a shard as on a whole model.
#[derive(Debug)]
pub(crate) struct Shards {
    /// This rank.
    pub rank: usize,
    /// The rank that updates each parameter, by slot.
    pub owners: Vec<usize>,
    /// Number of elements that each rank updates.
    pub sizes: Vec<usize>,
}

impl Shards {
    /// Divides parameters of these numbers of elements over `ranks` ranks: the largest first, each to the rank that has
    /// the fewest elements so far (Graham 1969, "Bounds on Multiprocessing Timing Anomalies").
    pub fn new(lengths: &[usize], rank: usize, ranks: usize) -> Self {
        let mut largest_first: Vec<usize> = (0..lengths.len()).collect();
        largest_first.sort_by_key(|slot| Reverse(lengths[*slot]));
        let (mut owners, mut sizes) = (vec![0; lengths.len()], vec![0; ranks]);
        for slot in largest_first {
            let least = (0..ranks).min_by_key(|rank| sizes[*rank]).unwrap_or(0);
            owners[slot] = least;
            sizes[least] += lengths[slot];
        }
        Self { rank, owners, sizes }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    #[derive(Module, Debug)]
    struct Net {
        first: Linear,
        last: Linear,
        again: Linear,
    }

    fn net() -> Net {
        let device = Device::flex().autodiff();
        let last = LinearConfig::new(10, 3).init(&device);
        Net { first: LinearConfig::new(5, 10).init(&device), again: last.clone(), last }
    }

    fn paths(plan: &BucketPlan) -> Vec<Vec<&str>> {
        plan.members.iter().map(|m| m.iter().map(|slot| plan.slots[*slot].path.as_str()).collect()).collect()
    }

    #[test]
    fn the_last_parameters_come_first_and_shared_ones_once() {
        let plan = BucketPlan::new(&net(), BucketSizes::default(), None);
        assert_eq!(paths(&plan), [["last.bias", "last.weight", "first.bias", "first.weight"]]);
        assert_eq!(
            plan.slots.iter().map(|s| s.range.clone()).collect::<Vec<_>>(),
            [43..93, 33..43, 3..33, 0..3]
        );
        assert_eq!(plan.length(0), 93);
    }

    #[test]
    fn a_bucket_closes_when_it_reaches_its_size() {
        let plan = BucketPlan::new(&net(), BucketSizes { first: 12, rest: 160 }, None);
        assert_eq!(paths(&plan), [&["last.bias"][..], &["last.weight", "first.bias"], &["first.weight"]]);
        assert_eq!((0..3).map(|b| plan.length(b)).collect::<Vec<_>>(), [3, 40, 50]);
    }

    #[test]
    fn a_bucket_has_one_owner() {
        let plan = |ranks| BucketPlan::new(&net(), BucketSizes::default(), Some((0, ranks)));
        // 50 elements, and 30 + 10 + 3.
        assert_eq!(paths(&plan(2)), [&["last.bias", "last.weight", "first.bias"][..], &["first.weight"]]);
        assert_eq!([plan(2).owner(0), plan(2).owner(1)], [Some(1), Some(0)]);
        assert!(plan(2).is_foreign(0) && !plan(2).is_foreign(1));
        // The fifth rank owns nothing.
        assert_eq!(plan(5).shards.expect("shards").sizes, [50, 30, 10, 3, 0]);
        assert_eq!(paths(&plan(5)), [["last.bias"], ["last.weight"], ["first.bias"], ["first.weight"]]);
    }

    #[test]
    fn a_model_without_parameters_has_one_empty_bucket() {
        let plan = BucketPlan::new(&burn::nn::Relu::new(), BucketSizes::default(), None);
        assert_eq!((plan.buckets(), plan.length(0)), (1, 0));
    }
}
