//! One step's gradients in device memory. Each is scaled and kept when it is final, and the all-reduce of a
//! bucket is started when the bucket is full and all before it have been started. The kernels of the rest of
//! backward run beside it: only [`finish`](DeviceBuckets::finish) makes the device wait for the sums.
//!
//! Other groups' collectives during backward, such as SyncBatchNorm's, wait for the buckets started before them,
//! because an event of the whole context includes NCCL's streams. Ranks whose backward passes differ in their
//! order, which takes a parameter that only some of them use between two such layers, may thus wait for each
//! other until the deadline; without overlap they do not.

use super::{
    arrivals::{Arrivals, parameter_is_gone, unreadable},
    buckets::BucketPlan,
    host::identity,
    reduction::ReducedGradients,
    step::Weights,
    watch::DepthAnchors,
};
use crate::{
    Error, ProcessGroup, ReduceOp, Result,
    tensor::{self, Reduction},
};
use burn::module::ParamId;
use burn::tensor::{Device, FloatDType, Tensor};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A gradient on its device.
pub struct DeviceGradient {
    /// Row by row.
    pub values: Tensor<1>,
    /// Equal for two tensors only if they are the same one, while `values` are alive.
    pub identity: u64,
}

pub(super) struct DeviceBuckets {
    plan: Arc<BucketPlan>,
    group: ProcessGroup,
    weights: Weights,
    state: Mutex<State>,
}

struct State {
    arrivals: Arrivals,
    /// What was accumulated before this step, unscaled.
    accumulated: Vec<Option<Tensor<1>>>,
    /// This rank's parts of the sums, until their bucket is started.
    parts: Vec<Option<Tensor<1>>>,
    started: Vec<Option<Reduction>>,
    /// Gradients that arrived during backward.
    seen: Vec<Option<DeviceGradient>>,
    failure: Option<Error>,
}

impl fmt::Debug for DeviceBuckets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeviceBuckets({})", self.plan.buckets())
    }
}

impl DeviceBuckets {
    /// `accumulated` are the accumulated gradients, one for each slot of the plan.
    pub fn new(
        plan: Arc<BucketPlan>,
        group: ProcessGroup,
        anchors: Arc<DepthAnchors>,
        weights: Weights,
        accumulated: Vec<Option<Tensor<1>>>,
    ) -> Self {
        let slots = plan.slots.len();
        let state = State {
            arrivals: Arrivals::new(plan.clone(), anchors, vec![false; slots]),
            accumulated,
            parts: vec![None; slots],
            started: Vec::new(),
            seen: (0..slots).map(|_| None).collect(),
            failure: None,
        };
        Self { plan, group, weights, state: Mutex::new(state) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn slot_of(&self, id: ParamId) -> Option<usize> {
        self.plan.slot_of(id)
    }

    /// See [`Arrivals::use_in_forward`].
    pub fn used(&self, slot: usize, device: &Device) -> Option<Tensor<1>> {
        self.state().arrivals.use_in_forward(slot, device)
    }

    /// The gradient of one use has arrived; `read` returns the sum of all that have.
    pub fn arrived(&self, slot: usize, read: impl FnOnce() -> DeviceGradient) {
        let mut state = self.state();
        if !state.arrivals.arrive(slot) {
            return;
        }
        let gradient = read();
        self.put(&mut state, slot, Some(gradient.values.clone()), &gradient.values.device());
        state.seen[slot] = Some(gradient);
        self.start_full(&mut state);
    }

    /// See [`Reduction::has`](super::reduction::Reduction::has).
    pub fn has(&self, slot: usize) -> bool {
        self.state().arrivals.has(slot)
    }

    /// See [`Reduction::write`](super::reduction::Reduction::write).
    pub fn write<const D: usize>(&self, slot: usize, gradient: Option<Tensor<D>>, device: &Device) -> bool {
        let mut state = self.state();
        if state.arrivals.has(slot) {
            return false;
        }
        let flat = gradient.map(|gradient| {
            let elements = gradient.shape().num_elements();
            gradient.reshape([elements])
        });
        self.put(&mut state, slot, flat, device);
        self.start_full(&mut state);
        true
    }

    /// Compares a gradient that arrived during backward with the one that backward left.
    pub fn compare<const D: usize>(&self, slot: usize, left: Option<Tensor<D>>) {
        let mut state = self.state();
        let Some(seen) = &state.seen[slot] else { return };
        if self.weights.own > 0.0 && left.and_then(identity) != Some(seen.identity) {
            state.arrivals.differ(slot);
        }
    }

    /// Waits until all buckets are on the device's queue, makes the device wait for the sums, and returns them,
    /// with those of `totals` `[n]`. `flags` become sums on the host, together with how many ranks used each
    /// parameter and how many want the step done again.
    ///
    /// # Errors
    /// The first one, on this rank or in the group.
    pub fn finish(&self, totals: Option<Tensor<1>>, flags: &mut Vec<f32>) -> Result<ReducedGradients> {
        let mut state = self.state();
        state.arrivals.end();
        self.start_full(&mut state);
        if let Some(failure) = state.failure.take() {
            self.group.abort(failure.to_string());
            return Err(failure);
        }
        if state.started.len() < self.plan.buckets() {
            let gone = parameter_is_gone();
            self.group.abort(gone.to_string());
            return Err(gone);
        }
        let own = flags.len();
        flags.extend(state.arrivals.flags());
        let (mut started, spoiled) = (std::mem::take(&mut state.started), state.arrivals.take_spoiled());
        drop(state);
        let totals = totals.map(|totals| tensor::start_all_reduce(totals, &self.group, ReduceOp::Sum));
        started.push(totals.transpose()?);
        self.group.all_reduce(flags, ReduceOp::Sum)?;
        let (users, again) = Arrivals::outcome(spoiled, &flags.split_off(own));
        let mut buckets = tensor::finish(started)?;
        let totals = buckets.pop().flatten();
        Ok(ReducedGradients { buckets, users, totals, again })
    }

    /// Keeps a gradient, scaled and with what was accumulated, as this rank's part of the sum, in f32.
    fn put(&self, state: &mut State, slot: usize, gradient: Option<Tensor<1>>, device: &Device) {
        let place = &self.plan.slots[slot];
        // A gradient of padding may be anything, even not a number.
        let own = gradient.filter(|_| self.weights.own > 0.0).map(|grad| grad.mul_scalar(self.weights.own));
        let weight = self.weights.accumulated.unwrap_or(1.0);
        let accumulated = state.accumulated[slot].take().map(|grad| grad.mul_scalar(weight));
        let counts = own.is_some() || accumulated.is_some();
        let sum = match (accumulated, own) {
            (Some(accumulated), Some(own)) => accumulated + own,
            (Some(one), None) | (None, Some(one)) => one,
            (None, None) => Tensor::zeros([place.range.len()], (device, burn::tensor::DType::F32)),
        };
        if sum.shape().num_elements() != place.range.len() {
            let reason = format!("it has {} elements", sum.shape().num_elements());
            state.failure.get_or_insert_with(|| unreadable(&self.plan, slot, reason));
        }
        state.parts[slot] = Some(sum.cast(FloatDType::F32));
        state.arrivals.write(slot, counts);
    }

    /// Starts the all-reduces of the buckets that are full, in order.
    fn start_full(&self, state: &mut State) {
        while state.arrivals.is_full(state.started.len()) && state.failure.is_none() {
            let members = &self.plan.members[state.started.len()];
            let parts: Vec<Tensor<1>> = members.iter().filter_map(|slot| state.parts[*slot].take()).collect();
            let reduction = (!parts.is_empty())
                .then(|| tensor::start_all_reduce(Tensor::cat(parts, 0), &self.group, ReduceOp::Sum));
            match reduction.transpose() {
                Ok(reduction) => state.started.push(reduction),
                Err(error) => state.failure = Some(error),
            }
        }
    }
}
