//! Gradient buckets in device memory.
//!
//! Each gradient is stored when it is final. When all gradients of a bucket are there and all buckets before it have
//! started, they are scaled and written into one tensor, whose reduction starts. The remaining kernels of backward run
//! concurrently: only [`finish`](DeviceBuckets::finish) makes the device wait for the sums.
//!
//! The training thread waits for no other rank, because the ranks' calls are compared in the background, and not for the
//! thread that launches kernels, which enqueues the sums behind them.
//!
//! Buckets and collectives of other groups during backward, such as SyncBatchNorm's, are called on the thread that
//! runs backward. They are enqueued on the device in the order of the calls, which is the same on all ranks because
//! autodiff runs equal graphs in equal order. If the graphs differ, for example because only some ranks use a
//! parameter between two such layers, ranks may wait for each other until the deadline. Without overlap this cannot
//! happen.

use super::{
    accumulate::Weights,
    arrivals::Arrivals,
    buckets::BucketPlan,
    read::{DeviceGradient, identity},
};
use crate::{
    ProcessGroup, Result,
    tensor::{self, Reduction},
};
use burn::tensor::{DType, Device, Tensor};
use std::sync::Arc;

pub(super) struct DeviceBuckets {
    plan: Arc<BucketPlan>,
    group: ProcessGroup,
    weights: Weights,
    /// Gradients accumulated before this step, unscaled.
    accumulated: Vec<Option<Tensor<1>>>,
    /// This rank's parts of the sums, until their bucket is started.
    parts: Vec<Option<Tensor<1>>>,
    started: Vec<Option<Reduction>>,
    /// Gradients that arrived during backward.
    seen: Vec<Option<DeviceGradient>>,
}

impl DeviceBuckets {
    /// Creates the buckets of a step; `accumulated` are the accumulated gradients, one for each slot of the plan.
    pub fn new(
        plan: Arc<BucketPlan>,
        group: ProcessGroup,
        weights: Weights,
        accumulated: Vec<Option<Tensor<1>>>,
    ) -> Self {
        let slots = plan.slots.len();
        let seen = (0..slots).map(|_| None).collect();
        Self { plan, group, weights, accumulated, parts: vec![None; slots], started: Vec::new(), seen }
    }

    /// Stores a gradient that is complete during backward, and starts the reductions that are ready.
    pub fn arrive(&mut self, arrivals: &mut Arrivals, slot: usize, gradient: DeviceGradient) {
        self.put(arrivals, slot, Some(gradient.values.clone()), &gradient.values.device());
        self.seen[slot] = Some(gradient);
        self.launch_ready_buckets(arrivals);
    }

    /// Stores the gradient that backward returned for a parameter, and starts the reductions that are ready.
    pub fn write<const D: usize>(
        &mut self,
        arrivals: &mut Arrivals,
        slot: usize,
        gradient: Option<Tensor<D>>,
        device: &Device,
    ) {
        let flat = gradient.map(|gradient| {
            let elements = gradient.shape().num_elements();
            gradient.reshape([elements])
        });
        self.put(arrivals, slot, flat, device);
        self.launch_ready_buckets(arrivals);
    }

    /// Whether a stored gradient equals the one that backward returned; true if it was stored after backward.
    pub fn is_unchanged<const D: usize>(
        &self,
        slot: usize,
        left: impl FnOnce() -> Option<Tensor<D>>,
    ) -> bool {
        match &self.seen[slot] {
            Some(seen) if self.weights.own > 0.0 => left().and_then(identity) == Some(seen.identity),
            Some(_) | None => true,
        }
    }

    /// Makes the device wait for the sums, and returns them and those of `totals` `[n]`.
    ///
    /// # Errors
    /// The first error on this rank or in the group.
    pub fn finish(
        mut self,
        totals: Option<Tensor<1>>,
    ) -> Result<(Vec<Option<Tensor<1>>>, Option<Tensor<1>>)> {
        // Only a bucket without parameters has not been started.
        self.started.resize_with(self.plan.buckets(), || None);
        let totals = totals.map(|totals| tensor::start_sum(totals, &self.group, None));
        self.started.push(totals.transpose()?);
        let mut buckets = tensor::finish(self.started);
        let totals = buckets.pop().flatten();
        Ok((buckets, totals))
    }

    /// Stores this rank's part of the sum, which [`factor`](Self::factor) scales later.
    fn put(&mut self, arrivals: &mut Arrivals, slot: usize, gradient: Option<Tensor<1>>, device: &Device) {
        let length = self.plan.slots[slot].range.len();
        // The gradient of padding has an arbitrary value, possibly NaN.
        let own = gradient.filter(|_| self.weights.own > 0.0);
        let own = match self.weights.accumulated {
            None => own,
            Some(_) => own.map(|grad| grad.mul_scalar(self.weights.own)),
        };
        let weight = self.weights.accumulated.unwrap_or(1.0);
        let accumulated = self.accumulated[slot].take().map(|grad| grad.mul_scalar(weight));
        let counts = own.is_some() || accumulated.is_some();
        let sum = match (accumulated, own) {
            (Some(accumulated), Some(own)) => accumulated + own,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Tensor::zeros([length], (device, DType::F32)),
        };
        if sum.shape().num_elements() != length {
            arrivals.unreadable(slot, format!("it has {} elements", sum.shape().num_elements()));
        }
        self.parts[slot] = Some(sum);
        arrivals.write(slot, counts);
    }

    /// Factor of the stored parts. Accumulated gradients and those added to them are scaled already.
    fn factor(&self) -> f32 {
        match self.weights {
            Weights { own, accumulated: None } if own > 0.0 => own,
            _ => 1.0,
        }
    }

    /// Starts the reductions of the buckets that are full, in order.
    fn launch_ready_buckets(&mut self, arrivals: &mut Arrivals) {
        while arrivals.is_ready(self.started.len()) {
            let members = &self.plan.members[self.started.len()];
            let parts: Vec<Tensor<1>> = members.iter().filter_map(|slot| self.parts[*slot].take()).collect();
            let bucket = tensor::concatenate(parts, self.factor());
            match tensor::start_sum(bucket, &self.group, self.plan.owner(self.started.len())) {
                Ok(reduction) => self.started.push(Some(reduction)),
                Err(error) => arrivals.fail(error),
            }
        }
    }
}
