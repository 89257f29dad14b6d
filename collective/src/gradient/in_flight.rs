//! One step's gradients in host memory. Each is written into its bucket when it is final, and the reduction of a
//! bucket starts when it is full and all buckets before it have started. Buckets are therefore reduced in the same
//! order on every rank, in whichever order gradients arrive.

use super::{
    arrivals::{Arrivals, parameter_is_gone, unreadable},
    buckets::BucketPlan,
    hook::BucketSender,
    host::{Values, f32s, read},
    reduction::ReducedGradients,
    step::Weights,
    watch::DepthAnchors,
};
use crate::{Error, Result, Work, readback::Readback};
use burn::module::ParamId;
use burn::tensor::{DType, Device, Tensor, TensorData};
use std::{
    fmt,
    hash::{DefaultHasher, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

pub(super) struct InFlightReduction {
    plan: Arc<BucketPlan>,
    sender: BucketSender,
    weights: Weights,
    /// Elements of each gradient that are compared with what backward left.
    compared: usize,
    state: Mutex<State>,
}

struct State {
    arrivals: Arrivals,
    /// Without accumulated gradients they have room only, of no length until all gradients are written:
    /// clearing it first costs half as much as writing them. Without room once its reduction has started.
    buffers: Vec<Vec<f32>>,
    started: Vec<Work<Vec<f32>>>,
    /// Of the first elements of each gradient that arrived during backward.
    digests: Vec<Option<u64>>,
    failure: Option<Error>,
}

impl fmt::Debug for InFlightReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlightReduction({} buckets)", self.plan.buckets())
    }
}

impl InFlightReduction {
    /// Creates a reduction; `buffers` have room for all gradients, or hold the accumulated gradients of the parameters
    /// that `used` marks.
    pub fn new(
        plan: Arc<BucketPlan>,
        sender: BucketSender,
        anchors: Arc<DepthAnchors>,
        weights: Weights,
        buffers: Vec<Vec<f32>>,
        used: Vec<bool>,
        compared: usize,
    ) -> Self {
        let slots = plan.slots.len();
        let state = State {
            arrivals: Arrivals::new(plan.clone(), anchors, used),
            buffers,
            started: Vec::new(),
            digests: vec![None; slots],
            failure: None,
        };
        Self { plan, sender, weights, compared, state: Mutex::new(state) }
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
    pub fn arrived(&self, slot: usize, read: impl FnOnce() -> Result<Values, String>) {
        let mut state = self.state();
        if !state.arrivals.arrive(slot) {
            return;
        }
        let written = if self.weights.own > 0.0 {
            read().and_then(|grad| {
                let grad = grad.as_f32()?;
                state.digests[slot] = Some(digest(&grad, self.compared));
                state.write(&self.plan, self.weights, slot, Some(&grad))
            })
        } else {
            state.write(&self.plan, self.weights, slot, None)
        };
        match written {
            Ok(()) => self.launch_ready_buckets(&mut state, self.plan.buckets() - 1),
            Err(reason) => state.fail(&self.plan, slot, reason),
        }
    }

    /// See [`Reduction::has`](super::reduction::Reduction::has).
    pub fn has(&self, slot: usize) -> bool {
        self.state().arrivals.has(slot)
    }

    /// See [`Reduction::write`](super::reduction::Reduction::write).
    pub fn write<const D: usize>(&self, slot: usize, grad: Option<Tensor<D>>) -> Result<bool> {
        let grad = grad.map(read).transpose()?;
        let mut state = self.state();
        if state.arrivals.has(slot) {
            return Ok(false);
        }
        let grad = grad.filter(|_| self.weights.own > 0.0);
        let grad = grad.as_ref().map(f32s).transpose();
        let written = grad.and_then(|grad| state.write(&self.plan, self.weights, slot, grad.as_deref()));
        if let Err(reason) = written {
            state.fail(&self.plan, slot, reason);
        }
        Ok(true)
    }

    /// Compares the first elements of a gradient with what backward left, which may be nothing. A gradient that was
    /// written after backward is what backward left.
    pub fn compare<const D: usize>(
        &self,
        slot: usize,
        left: impl FnOnce() -> Option<Tensor<D>>,
    ) -> Result<()> {
        if self.compared == 0 || self.weights.own == 0.0 {
            return Ok(());
        }
        let first = left().map(|grad| {
            let length = grad.shape().num_elements();
            read(grad.reshape([length]).slice(0..self.compared.min(length)))
        });
        let first = first.transpose()?;
        let mut state = self.state();
        let Some(arrived) = state.digests[slot] else { return Ok(()) };
        let now = first.and_then(|first| Some(digest(&f32s(&first).ok()?, self.compared)));
        if now != Some(arrived) {
            state.arrivals.differ(slot);
        }
        Ok(())
    }

    /// See [`Reduction::finish`](super::reduction::Reduction::finish). Totals, flags, the number of ranks that used
    /// each parameter and the number that want the step repeated are sent behind the last bucket.
    pub fn finish(&self, totals: Option<Tensor<1>>, flags: &mut Vec<f32>) -> Result<ReducedGradients> {
        let (own, has_totals) = (flags.len(), totals.is_some());
        if let Some(totals) = totals {
            let values = Readback::start(vec![totals])?.wait()?;
            flags.extend(values.iter().flatten().map(|total| *total as f32));
        }
        let reduced = self.wait(flags)?;
        let sums = flags.split_off(own);
        Ok(ReducedGradients { totals: has_totals.then(|| on_host(sums)), ..reduced })
    }

    /// Starts the remaining reductions, with `totals` behind the last bucket, and waits for all; `totals` become
    /// sums too.
    fn wait(&self, totals: &mut Vec<f32>) -> Result<ReducedGradients> {
        let mut state = self.state();
        state.arrivals.end();
        if let Some(failure) = state.failure.take() {
            self.sender.group.abort(failure.to_string());
            return Err(failure);
        }
        let own = totals.len();
        totals.extend(state.arrivals.flags());
        let last = self.plan.buckets() - 1;
        state.buffers[last].extend_from_slice(totals);
        self.launch_ready_buckets(&mut state, self.plan.buckets());
        let (started, spoiled, failure) =
            (std::mem::take(&mut state.started), state.arrivals.take_spoiled(), state.failure.take());
        drop(state);
        if let Some(failure) = failure {
            return Err(failure);
        }
        if started.len() <= last {
            let gone = parameter_is_gone();
            self.sender.group.abort(gone.to_string());
            return Err(gone);
        }
        let mut buffers = started.into_iter().map(Work::wait).collect::<Result<Vec<_>>>()?;
        let tail = buffers[last].split_off(self.plan.length(last));
        totals.truncate(own);
        totals.copy_from_slice(&tail[..own]);
        let (users, again) = Arrivals::outcome(spoiled, &tail[own..]);
        let buckets = buffers.into_iter().map(|buffer| Some(on_host(buffer))).collect();
        Ok(ReducedGradients { buckets, users, totals: None, again })
    }

    /// Starts the reductions of the buckets below `end` that are full, in order.
    fn launch_ready_buckets(&self, state: &mut State, end: usize) {
        while state.started.len() < end
            && state.arrivals.is_full(state.started.len())
            && state.failure.is_none()
        {
            let index = state.started.len();
            match self.sender.send(&self.plan, index, std::mem::take(&mut state.buffers[index])) {
                Ok(work) => state.started.push(work),
                Err(error) => state.failure = Some(error),
            }
        }
    }
}

impl State {
    fn write(
        &mut self,
        plan: &BucketPlan,
        weights: Weights,
        slot: usize,
        grad: Option<&[f32]>,
    ) -> Result<(), String> {
        let place = &plan.slots[slot];
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
        if self.arrivals.write(slot, grad.is_some()) {
            // SAFETY: there is room for a bucket, and all of its gradients, which lie side by side, are
            // written.
            unsafe { buffer.set_len(plan.length(place.bucket)) };
        }
        Ok(())
    }

    fn fail(&mut self, plan: &BucketPlan, slot: usize, reason: String) {
        self.failure.get_or_insert_with(|| unreadable(plan, slot, reason));
    }
}

fn digest(grad: &[f32], elements: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytemuck::cast_slice(&grad[..elements.min(grad.len())]));
    hasher.finish()
}

/// `[n]`, in host memory.
fn on_host(values: Vec<f32>) -> Tensor<1> {
    let length = values.len();
    Tensor::from_data(TensorData::new(values, [length]), (&Device::flex(), DType::F32))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ProcessGroup, gradient::BucketSizes};
    use burn::nn::LinearConfig;

    #[test]
    fn a_gradient_that_arrives_before_it_is_written_counts_once() {
        let layer = LinearConfig::new(2, 2).init(&Device::flex().autodiff());
        let plan = Arc::new(BucketPlan::new(&layer, BucketSizes::default()));
        let [weight, bias] =
            [layer.weight.id, layer.bias.as_ref().unwrap().id].map(|id| plan.slot_of(id).unwrap());
        let buffers = vec![Vec::with_capacity(plan.length(0))];
        let sender = BucketSender { group: ProcessGroup::solo(), hook: None };
        let weights = Weights { own: 1.0, accumulated: None };
        let (used, compared) = (vec![false; 2], usize::MAX);
        let reduction =
            InFlightReduction::new(plan.clone(), sender, Arc::default(), weights, buffers, used, compared);
        let all = |value: f32, count| TensorData::new(vec![value; count], [count]);

        // `finish` finds that the gradient is missing, another thread's backward brings it, and `finish`
        // writes what it has.
        assert!(!reduction.has(weight));
        reduction.arrived(weight, || Ok(Values::Read(all(1.0, 4))));
        assert!(!reduction.write(weight, Some(on_host(vec![1.0; 4]))).unwrap());
        assert!(!reduction.has(bias));
        assert!(reduction.write(bias, Some(on_host(vec![2.0; 2]))).unwrap());

        let reduced = reduction.wait(&mut vec![]).unwrap();
        let bucket = reduced.buckets[0].clone().unwrap().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(bucket, [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
        assert_eq!((reduced.users, reduced.again), (vec![1, 1], None));
    }
}
