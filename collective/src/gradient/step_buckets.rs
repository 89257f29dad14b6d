//! The gradient buckets of one step, in host or device memory.
//!
//! Each gradient is kept when it is final. When all gradients of a bucket are there and all buckets before it have
//! started, they are weighted and written into the bucket, whose reduction starts. Buckets are therefore reduced in the
//! same order on every rank, independently of the order in which gradients arrive.
//!
//! In device memory, the remaining kernels of backward run concurrently: only [`wait`](ClosedBuckets::wait) makes the
//! device wait for the sums. The training thread waits for no other rank, because the ranks' calls are compared in the
//! background, and neither for the thread that fuses operations nor for the one that launches kernels, which enqueues the
//! sums behind them.
//!
//! Buckets and collectives of other groups during backward, such as SyncBatchNorm's, are called on the thread that
//! runs backward. They are enqueued on the device in the order of the calls, which is the same on all ranks because
//! autodiff runs equal graphs in equal order. If the graphs differ, for example because only some ranks use a
//! parameter between two such layers, ranks may wait for each other until the deadline. Without overlap this cannot
//! happen.

use super::{
    accumulate::{AccumulatedGradients, Weights},
    buckets::BucketPlan,
    closed_buckets::{ClosedBuckets, ClosedSums},
    hook::BucketSender,
    read::{identity, read},
};
use crate::{
    Error, ReduceOp, Result, Work,
    parameters::{TensorList, TensorMap, values},
    readback::Readback,
    tensor::{self, Reduction},
};
use burn::module::Module;
use burn::tensor::{DType, Device, FloatDType, Tensor};
use kernels::host_tensor;
use std::{sync::Arc, time::Instant};

pub(super) struct StepBuckets {
    pub plan: Arc<BucketPlan>,
    sender: BucketSender,
    weights: Weights,
    slots: Vec<SlotState>,
    /// Number of gradients that each bucket waits for.
    missing: Vec<usize>,
    /// Number of uses of parameters in forward.
    uses: usize,
    /// When the first gradient arrived.
    pub first_arrival: Option<Instant>,
    /// Whether this rank has samples in this step.
    has_samples: bool,
    /// Device of the gradients.
    device: Device,
    started: Started,
    /// Reason why the buckets differ from the gradients that backward returned.
    spoiled: Option<String>,
    /// First error. No bucket is reduced after it.
    failure: Option<Error>,
}

/// The gradient of one parameter in a step.
#[derive(Clone, Default)]
struct SlotState {
    /// Number of uses in forward whose gradients have not arrived. The gradient is complete when there is none.
    pending: usize,
    /// Whether the gradient is in its bucket.
    is_written: bool,
    /// Whether it is one of real samples.
    counts: bool,
    /// The gradient of this step's last batch, flat, until its bucket is started.
    own: Option<Tensor<1>>,
    /// The gradient accumulated before, until its bucket is started.
    accumulated: Option<Tensor<1>>,
    /// The gradient that arrived during backward.
    seen: Option<Tensor<1>>,
}

/// Buckets whose reduction has started.
enum Started {
    Host(Vec<Work<Vec<f32>>>),
    Device(Vec<Option<Reduction>>),
}

impl StepBuckets {
    pub fn new(
        plan: Arc<BucketPlan>,
        sender: BucketSender,
        on_device: bool,
        weights: Weights,
        accumulated: &AccumulatedGradients,
    ) -> Self {
        let slot = |accumulated| SlotState { accumulated, ..SlotState::default() };
        Self {
            slots: accumulated.flat(&plan).into_iter().map(slot).collect(),
            missing: plan.members.iter().map(Vec::len).collect(),
            uses: 0,
            first_arrival: None,
            has_samples: weights.own > 0.0 || accumulated.has_samples(),
            spoiled: None,
            failure: None,
            device: Device::flex(),
            started: if on_device { Started::Device(Vec::new()) } else { Started::Host(Vec::new()) },
            plan,
            sender,
            weights,
        }
    }

    /// Registers a use of a parameter in forward and returns its index in the step.
    pub fn use_in_forward(&mut self, slot: usize) -> usize {
        self.uses += 1;
        self.slots[slot].pending += 1;
        if self.slots[slot].is_written {
            self.spoil("a parameter was used again after backward", slot);
        }
        self.uses - 1
    }

    /// Registers the gradient of one use of a parameter. `gradient` returns the sum of all that have arrived, which is
    /// stored when it is complete. Starts the reductions that are ready.
    pub fn arrive(&mut self, slot: usize, gradient: impl FnOnce() -> Tensor<1>) {
        self.first_arrival.get_or_insert_with(Instant::now);
        let state = &mut self.slots[slot];
        state.pending = state.pending.saturating_sub(1);
        if state.is_written {
            self.spoil("a gradient changed after it was complete", slot);
        } else if state.pending == 0 {
            let gradient = gradient();
            self.device = gradient.device();
            state.seen = Some(gradient.clone());
            self.put(slot, Some(gradient));
        }
    }

    /// Stores the gradients of `module` that did not arrive, and compares the others with `grads`, which backward
    /// returned. Starts the reductions that are ready.
    ///
    /// # Errors
    /// If a parameter has become trainable.
    pub fn collect<M: Module>(&mut self, grads: TensorList, module: &M) -> Result<()> {
        let mut grads: TensorMap = grads.into_iter().collect();
        for (id, value) in values(module, true) {
            let slot = self.plan.slot_of(id).ok_or_else(|| {
                Error::Invalid(format!(
                    "parameter {id} became trainable after the gradient buckets were created: create a new reducer"
                ))
            })?;
            let state = &self.slots[slot];
            if !state.is_written {
                self.device = value.device();
                self.put(slot, grads.remove(&id));
            } else if let Some(seen) = state.seen.clone().filter(|_| self.weights.own > 0.0)
                && grads.get(&id).cloned().and_then(identity) != identity(seen)
            {
                self.spoil("a gradient was changed after backward", slot);
            }
        }
        Ok(())
    }

    /// Stores this rank's gradient of a parameter, `None` for zeros, and starts the reductions that are ready.
    fn put(&mut self, slot: usize, gradient: Option<Tensor<1>>) {
        let (state, place) = (&mut self.slots[slot], &self.plan.slots[slot]);
        // The gradient of padding has an arbitrary value, possibly NaN.
        if let Some(gradient) = gradient.filter(|_| self.weights.own > 0.0) {
            let elements = gradient.shape().num_elements();
            if elements != place.range.len() {
                let what = format!("reading the gradient of {}", place.path);
                self.failure.get_or_insert(Error::Io { what, reason: format!("it has {elements} elements") });
            }
            state.own = Some(gradient.reshape([elements]));
        }
        state.counts = state.own.is_some() || state.accumulated.is_some();
        state.is_written = true;
        self.missing[place.bucket] -= 1;
        self.launch_ready_buckets();
    }

    fn spoil(&mut self, what: &str, slot: usize) {
        let path = &self.plan.slots[slot].path;
        self.spoiled.get_or_insert_with(|| format!("{what}: {path}"));
    }

    // ANCHOR: launch
    /// Whether the reduction of another bucket than the last can start: all its gradients are in it, and none has failed.
    fn is_next_ready(&self) -> bool {
        let next = self.started();
        next + 1 < self.plan.buckets() && self.missing[next] == 0 && self.failure.is_none()
    }

    fn started(&self) -> usize {
        match &self.started {
            Started::Host(started) => started.len(),
            Started::Device(started) => started.len(),
        }
    }

    /// Starts the reductions of full buckets in order. The last one waits for the totals, which it carries.
    fn launch_ready_buckets(&mut self) {
        while self.is_next_ready() {
            if let Err(error) = self.launch(self.started(), &[], None) {
                self.failure.get_or_insert(error);
            }
        }
    }

    /// Writes the weighted gradients of a bucket into one buffer, followed by `tail` in host memory or `totals` on a device,
    /// and starts its reduction.
    fn launch(&mut self, index: usize, tail: &[f32], totals: Option<Tensor<1>>) -> Result<()> {
        let (plan, weights) = (&self.plan, self.weights);
        // Without accumulated gradients in the step, the whole bucket is weighted at once.
        let factor = if weights.accumulated.is_none() { weights.own } else { 1.0 };
        let parts = plan.members[index].iter().map(|slot| {
            let in_f32 = |gradient: Tensor<1>| gradient.cast(FloatDType::F32);
            let own = self.slots[*slot].own.take().map(in_f32);
            let sum = self.slots[*slot].accumulated.take().map(in_f32);
            let part = if weights.accumulated.is_none() { own } else { weights.sum(own, sum) };
            (plan.slots[*slot].range.len(), part)
        });
        match &mut self.started {
            Started::Host(started) => {
                let mut buffer = Vec::with_capacity(plan.length(index) + tail.len());
                for (length, part) in parts {
                    match part.map(read).transpose()? {
                        Some(part) => buffer.extend(host_tensor::values(&part).iter().map(|x| x * factor)),
                        None => buffer.resize(buffer.len() + length, 0.0),
                    }
                }
                buffer.extend_from_slice(tail);
                started.push(self.sender.send(plan, index, buffer)?);
            }
            Started::Device(started) => {
                let parts = parts.map(|(length, part)| {
                    part.unwrap_or_else(|| Tensor::zeros([length], (&self.device, DType::F32)))
                });
                let bucket = tensor::concatenate(parts.collect(), factor, totals);
                started.push(Some(tensor::start_sum(bucket, &self.sender.group, plan.owner(index))?));
            }
        }
        Ok(())
    }
    // ANCHOR_END: launch

    /// Ends the step: starts the remaining reductions, with those of `totals` `[n]` and of `flags`.
    ///
    /// # Errors
    /// The first error on this rank or in the group, or an error that a gradient is missing.
    pub fn close(mut self, totals: Option<Tensor<1>>, flags: &[f32]) -> Result<ClosedBuckets> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.missing.iter().any(|missing| *missing > 0) {
            return Err(Error::Invalid(
                "a parameter was removed from the model after the reducer was created: create a new reducer"
                    .into(),
            ));
        }
        let spoiled = self.spoiled.take();
        let counts = self.slots.iter().map(|state| state.counts);
        let users = counts.chain([self.has_samples, spoiled.is_some()]).map(|flag| f32::from(u8::from(flag)));
        let users: Vec<f32> = users.collect();
        let message = [flags, &users].concat();
        let (ranks, last) = (self.sender.group.world_size(), self.plan.buckets() - 1);
        (self.started()..last).try_for_each(|index| self.launch(index, &[], None))?;
        let plan = self.plan.clone();
        let sums = match self.started {
            Started::Host(_) => self.close_on_host(totals, message)?,
            Started::Device(_) => self.close_on_device(totals, message)?,
        };
        Ok(ClosedBuckets { plan, sums, flags: flags.len(), users, spoiled, ranks })
    }

    fn close_on_host(mut self, totals: Option<Tensor<1>>, message: Vec<f32>) -> Result<ClosedSums> {
        let with_totals = totals.is_some();
        let totals = totals.map(|totals| Readback::start(vec![totals])?.wait()).transpose()?;
        let mut tail: Vec<f32> = totals.iter().flatten().flatten().map(|total| *total as f32).collect();
        let totals = with_totals.then_some(tail.len());
        tail.extend(message);
        self.launch(self.plan.buckets() - 1, &tail, None)?;
        let Started::Host(started) = self.started else { return Err(Error::Aborted) };
        Ok(ClosedSums::Host { started, totals, tail: tail.len() })
    }

    fn close_on_device(mut self, totals: Option<Tensor<1>>, message: Vec<f32>) -> Result<ClosedSums> {
        let group = self.sender.group.clone();
        let plan = &self.plan;
        let last = plan.buckets() - 1;
        // A bucket with an owner is reduced for that rank alone.
        let fits = |totals: &Tensor<1>| totals.device() == self.device && totals.dtype() == DType::F32;
        let (carried, alone) = match totals {
            Some(totals) if plan.owner(last).is_none() && fits(&totals) => (Some(totals), None),
            totals => (None, totals),
        };
        let tail = carried.as_ref().map_or(0, |totals| totals.dims()[0]);
        if plan.length(last) + tail > 0 {
            self.launch(last, &[], carried)?;
        }
        let Started::Device(mut started) = self.started else { return Err(Error::Aborted) };
        started.resize_with(last + 1, || None);
        started.push(alone.map(|totals| tensor::start_sum(totals, &group, None)).transpose()?);
        let message = group.all_reduce_async(message, ReduceOp::Sum)?;
        Ok(ClosedSums::Device { started, tail, message })
    }
}
