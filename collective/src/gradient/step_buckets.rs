//! The gradient buckets of one step, in host or device memory.
//!
//! Each gradient is kept when it is final. When all gradients of a bucket are there and all buckets before it have
//! started, they are weighted and written into the bucket, whose reduction starts. Buckets are therefore reduced in the
//! same order on every rank, independently of the order in which gradients arrive.
//!
//! In device memory, the remaining kernels of backward run concurrently: only [`finish`](StepBuckets::finish) makes the
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
    agreement::{Agreement, Sums},
    arrivals::Arrivals,
    buckets::BucketPlan,
    hook::BucketSender,
    read::{identity, on_host, read},
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
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

/// Sums over all ranks.
pub(super) struct ReducedGradients {
    /// Views of the buckets, by slot; `None` if another rank updates the parameter.
    pub gradients: Vec<Option<Tensor<1>>>,
    /// Sums of the totals.
    pub totals: Option<Tensor<1>>,
    /// What the ranks agree on, on a device still in progress.
    pub agreement: Agreement,
}

pub(super) struct StepBuckets {
    pub plan: Arc<BucketPlan>,
    sender: BucketSender,
    weights: Weights,
    pub arrivals: Arrivals,
    /// Gradients accumulated before this step, until their bucket is started.
    accumulated: Vec<Option<Tensor<1>>>,
    /// This step's gradients, flat, until their bucket is started.
    own: Vec<Option<Tensor<1>>>,
    /// Gradients that arrived during backward.
    seen: Vec<Option<Tensor<1>>>,
    /// Device of the gradients.
    device: Device,
    started: Started,
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
        let slots = plan.slots.len();
        let has_samples = weights.own > 0.0 || accumulated.has_samples();
        Self {
            arrivals: Arrivals::new(plan.clone(), has_samples),
            accumulated: accumulated.flat(&plan),
            own: vec![None; slots],
            seen: vec![None; slots],
            device: Device::flex(),
            started: if on_device { Started::Device(Vec::new()) } else { Started::Host(Vec::new()) },
            plan,
            sender,
            weights,
        }
    }

    /// Registers the gradient of one use of a parameter. `gradient` returns the sum of all that have arrived, which is
    /// stored when it is complete. Starts the reductions that are ready.
    pub fn arrive(&mut self, slot: usize, gradient: impl FnOnce() -> Tensor<1>) {
        if !self.arrivals.arrive(slot) {
            return;
        }
        let gradient = gradient();
        self.device = gradient.device();
        self.seen[slot] = Some(gradient.clone());
        self.put(slot, Some(gradient));
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
            if !self.arrivals.has(slot) {
                self.device = value.device();
                self.put(slot, grads.remove(&id));
            } else if let Some(seen) = self.seen[slot].clone().filter(|_| self.weights.own > 0.0)
                && grads.get(&id).cloned().and_then(identity) != identity(seen)
            {
                self.arrivals.differ(slot);
            }
        }
        Ok(())
    }

    /// Stores this rank's gradient of a parameter, `None` for zeros, and starts the reductions that are ready.
    fn put(&mut self, slot: usize, gradient: Option<Tensor<1>>) {
        // The gradient of padding has an arbitrary value, possibly NaN.
        if let Some(gradient) = gradient.filter(|_| self.weights.own > 0.0) {
            let elements = gradient.shape().num_elements();
            if elements != self.plan.slots[slot].range.len() {
                self.arrivals.unreadable(slot, format!("it has {elements} elements"));
            }
            self.own[slot] = Some(gradient.reshape([elements]));
        }
        self.arrivals.write(slot, self.own[slot].is_some() || self.accumulated[slot].is_some());
        self.launch_ready_buckets();
    }

    fn started(&self) -> usize {
        match &self.started {
            Started::Host(started) => started.len(),
            Started::Device(started) => started.len(),
        }
    }

    // ANCHOR: launch
    /// Starts the reductions of full buckets in order. The last one waits for the totals, which it carries.
    fn launch_ready_buckets(&mut self) {
        while self.started() + 1 < self.plan.buckets() && self.arrivals.is_ready(self.started()) {
            if let Err(error) = self.launch(self.started(), &[], None) {
                self.arrivals.fail(error);
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
            let own = self.own[*slot].take().map(in_f32);
            let sum = self.accumulated[*slot].take().map(in_f32);
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

    /// Ends the step: starts the remaining reductions, waits for all and returns the sums, with those of `totals` `[n]`
    /// and of `flags`. In device memory, only the device waits.
    ///
    /// # Errors
    /// The first error on this rank or in the group, or an error that a gradient is missing.
    pub fn finish(mut self, totals: Option<Tensor<1>>, flags: &[f32]) -> Result<ReducedGradients> {
        let (users, spoiled) = self.arrivals.end()?;
        let message = [flags, &users].concat();
        let (ranks, last) = (self.sender.group.world_size(), self.plan.buckets() - 1);
        (self.started()..last).try_for_each(|index| self.launch(index, &[], None))?;
        let (gradients, totals, sums) = match self.started {
            Started::Host(_) => self.finish_on_host(totals, message)?,
            Started::Device(_) => self.finish_on_device(totals, message)?,
        };
        let agreement = Agreement::new(sums, flags.len(), &users, spoiled, ranks);
        Ok(ReducedGradients { gradients, totals, agreement })
    }

    fn finish_on_host(mut self, totals: Option<Tensor<1>>, message: Vec<f32>) -> Result<Finished> {
        let with_totals = totals.is_some();
        let totals = totals.map(|totals| Readback::start(vec![totals])?.wait()).transpose()?;
        let mut tail: Vec<f32> = totals.iter().flatten().flatten().map(|total| *total as f32).collect();
        let totals = tail.len();
        tail.extend(message);
        let plan = self.plan.clone();
        let last = plan.buckets() - 1;
        self.launch(last, &tail, None)?;
        let Started::Host(started) = self.started else { return Err(Error::Aborted) };
        let mut buckets = started.into_iter().map(Work::wait).collect::<Result<Vec<_>>>()?;
        let length = buckets[last].len() - tail.len();
        let mut summed = buckets[last].split_off(length);
        let sums = summed.split_off(totals);
        let own = |(index, bucket)| (!plan.is_foreign(index)).then(|| on_host(bucket));
        let (gradients, _) = plan.split(buckets.into_iter().enumerate().map(own).collect(), 0);
        Ok((gradients, with_totals.then(|| on_host(summed)), Sums::Known(sums)))
    }

    fn finish_on_device(mut self, totals: Option<Tensor<1>>, message: Vec<f32>) -> Result<Finished> {
        let (group, plan) = (self.sender.group.clone(), self.plan.clone());
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
        let mut buckets = tensor::finish(started);
        let alone = buckets.pop().flatten();
        let (gradients, carried) = plan.split(buckets, tail);
        Ok((gradients, carried.or(alone), Sums::InProgress(group.all_reduce_async(message, ReduceOp::Sum)?)))
    }
}

/// Sums of a step: gradients by slot, totals, and the ranks' messages.
type Finished = (Vec<Option<Tensor<1>>>, Option<Tensor<1>>, Sums);

/// The buckets of a step, shared by the step and the parameters that it watches; `None` when it has ended.
pub(super) struct InFlightReduction(Mutex<Option<StepBuckets>>);

impl fmt::Debug for InFlightReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("InFlightReduction")
    }
}

impl InFlightReduction {
    pub fn new(buckets: StepBuckets) -> Self {
        Self(Mutex::new(Some(buckets)))
    }

    /// Runs `act` on the buckets, unless the step has ended.
    pub fn with<R>(&self, act: impl FnOnce(&mut StepBuckets) -> R) -> Option<R> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_mut().map(act)
    }

    /// Ends the step: nothing arrives from now on.
    pub fn end(&self) -> Option<StepBuckets> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}
