//! Gradient buckets in host memory.
//!
//! Each gradient is written into its bucket when it is final. The reduction of a bucket starts when it is full and
//! all buckets before it have started. Buckets are therefore reduced in the same order on every rank, independently
//! of the order in which gradients arrive.

use super::{
    accumulate::Weights,
    arrivals::Arrivals,
    buckets::BucketPlan,
    hook::BucketSender,
    read::{Values, f32s, read},
};
use crate::{Result, Work, readback::Readback};
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::{
    hash::{DefaultHasher, Hasher},
    sync::Arc,
};

pub(super) struct HostBuckets {
    plan: Arc<BucketPlan>,
    sender: BucketSender,
    weights: Weights,
    /// Number of elements of each gradient that are compared with backward's result.
    compared: usize,
    /// Without accumulated gradients, a buffer has capacity but length 0 until all gradients are written, because
    /// clearing it costs half as much as writing them. It is empty once its reduction has started.
    buffers: Vec<Vec<f32>>,
    started: Vec<Work<Vec<f32>>>,
    /// First elements of each gradient that arrived during backward.
    digests: Vec<Option<u64>>,
}

impl HostBuckets {
    /// Creates the buckets of a step; `buffers` have capacity for all gradients, or contain accumulated gradients.
    pub fn new(
        plan: Arc<BucketPlan>,
        sender: BucketSender,
        weights: Weights,
        buffers: Vec<Vec<f32>>,
        compared: usize,
    ) -> Self {
        let digests = vec![None; plan.slots.len()];
        Self { plan, sender, weights, compared, buffers, started: Vec::new(), digests }
    }

    /// Writes a gradient that is complete during backward, and starts the reductions that are ready.
    pub fn arrive(
        &mut self,
        arrivals: &mut Arrivals,
        slot: usize,
        read: impl FnOnce() -> Result<Values, String>,
    ) {
        let written = if self.weights.own > 0.0 {
            read().and_then(|grad| {
                let grad = grad.as_f32()?;
                self.digests[slot] = Some(digest(&grad, self.compared));
                self.put(arrivals, slot, Some(&grad))
            })
        } else {
            self.put(arrivals, slot, None)
        };
        match written {
            Ok(()) => self.launch_ready_buckets(arrivals),
            Err(reason) => arrivals.unreadable(slot, reason),
        }
    }

    /// Writes the gradient that backward returned for a parameter, if any.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn write<const D: usize>(
        &mut self,
        arrivals: &mut Arrivals,
        slot: usize,
        grad: Option<Tensor<D>>,
    ) -> Result<()> {
        let grad = grad.map(read).transpose()?.filter(|_| self.weights.own > 0.0);
        let grad = grad.as_ref().map(f32s).transpose();
        if let Err(reason) = grad.and_then(|grad| self.put(arrivals, slot, grad.as_deref())) {
            arrivals.unreadable(slot, reason);
        }
        Ok(())
    }

    /// Whether the first elements of a stored gradient equal those that backward returned.
    ///
    /// True for a gradient that was written after backward.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn is_unchanged<const D: usize>(
        &self,
        slot: usize,
        left: impl FnOnce() -> Option<Tensor<D>>,
    ) -> Result<bool> {
        let Some(arrived) = self.digests[slot].filter(|_| self.compared > 0) else { return Ok(true) };
        let first = left().map(|grad| {
            let length = grad.shape().num_elements();
            read(grad.reshape([length]).slice(0..self.compared.min(length)))
        });
        let first = first.transpose()?;
        let now = first.and_then(|first| Some(digest(&f32s(&first).ok()?, self.compared)));
        Ok(now == Some(arrived))
    }

    /// Starts the remaining reductions, with `flags`, `totals` and `users` behind the last bucket, and waits for
    /// all. `flags` and `users` become sums; returns the sums of the buckets and of `totals`.
    ///
    /// # Errors
    /// The first error on this rank or in the group.
    pub fn finish(
        mut self,
        totals: Option<Tensor<1>>,
        flags: &mut [f32],
        users: &mut [f32],
    ) -> Result<(Vec<Option<Tensor<1>>>, Option<Tensor<1>>)> {
        let totals = totals.map(|totals| Readback::start(vec![totals])?.wait()).transpose()?;
        let totals: Option<Vec<f32>> =
            totals.map(|values| values.iter().flatten().map(|total| *total as f32).collect());
        let last = self.plan.buckets() - 1;
        let tail = [&*flags, totals.as_deref().unwrap_or_default(), &*users].concat();
        self.buffers[last].extend_from_slice(&tail);
        for index in self.started.len()..=last {
            self.launch(index)?;
        }
        let mut buffers = self.started.into_iter().map(Work::wait).collect::<Result<Vec<_>>>()?;
        let length = buffers[last].len() - tail.len();
        let tail = buffers[last].split_off(length);
        let (own, rest) = tail.split_at(flags.len());
        let (sums, used) = rest.split_at(rest.len() - users.len());
        flags.copy_from_slice(own);
        users.copy_from_slice(used);
        let buckets = buffers.into_iter().map(|buffer| Some(on_host(buffer))).collect();
        Ok((buckets, totals.map(|_| on_host(sums.to_vec()))))
    }

    // ANCHOR: launch
    /// Starts the reductions of full buckets in order, except the last one, which carries the totals.
    fn launch_ready_buckets(&mut self, arrivals: &mut Arrivals) {
        while self.started.len() + 1 < self.plan.buckets() && arrivals.is_ready(self.started.len()) {
            if let Err(error) = self.launch(self.started.len()) {
                arrivals.fail(error);
            }
        }
    }

    fn launch(&mut self, index: usize) -> Result<()> {
        let buffer = std::mem::take(&mut self.buffers[index]);
        self.started.push(self.sender.send(&self.plan, index, buffer)?);
        Ok(())
    }
    // ANCHOR_END: launch

    /// Writes a gradient into its bucket, zeros or accumulated values for `None`.
    fn put(&mut self, arrivals: &mut Arrivals, slot: usize, grad: Option<&[f32]>) -> Result<(), String> {
        let (place, weights) = (&self.plan.slots[slot], self.weights);
        if let Some(from) = grad.filter(|from| from.len() != place.range.len()) {
            return Err(format!("it has {} elements", from.len()));
        }
        let buffer = &mut self.buffers[place.bucket];
        match (grad, weights.accumulated) {
            (Some(from), None) => {
                let to = &mut buffer.spare_capacity_mut()[place.range.clone()];
                to.iter_mut().zip(from).for_each(|(to, from)| _ = to.write(from * weights.own));
            }
            (None, None) => {
                let to = &mut buffer.spare_capacity_mut()[place.range.clone()];
                to.iter_mut().for_each(|to| _ = to.write(0.0));
            }
            (Some(from), Some(accumulated)) => {
                let to = &mut buffer[place.range.clone()];
                to.iter_mut().zip(from).for_each(|(to, from)| *to = *to * accumulated + from * weights.own);
            }
            (None, Some(accumulated)) => {
                buffer[place.range.clone()].iter_mut().for_each(|to| *to *= accumulated)
            }
        }
        if arrivals.write(slot, grad.is_some()) {
            // SAFETY: the capacity is that of a bucket, and all of its gradients, which are adjacent, are
            // written.
            unsafe { buffer.set_len(self.plan.length(place.bucket)) };
        }
        Ok(())
    }
}

fn digest(grad: &[f32], elements: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytemuck::cast_slice(&grad[..elements.min(grad.len())]));
    hasher.finish()
}

/// `[n]`, in host memory.
pub(super) fn on_host(values: Vec<f32>) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (&Device::flex(), DType::F32))
}
