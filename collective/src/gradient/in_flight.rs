//! The reduction of one step's gradients, in host or device memory, from the forward pass to the sums.

use super::{
    agreement::{Agreement, Message},
    arrivals::Arrivals,
    buckets::BucketPlan,
    device_buckets::DeviceBuckets,
    host_buckets::HostBuckets,
    read::{DeviceGradient, Values},
};
use crate::{ProcessGroup, ReduceOp, Result};
use burn::module::ParamId;
use burn::tensor::{Device, Tensor};
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Sums over all ranks.
pub(super) struct ReducedGradients {
    /// `None` for a bucket without parameters.
    pub buckets: Vec<Option<Tensor<1>>>,
    /// Sums of the totals.
    pub totals: Option<Tensor<1>>,
    /// What the ranks agree on, on a device still in progress.
    pub agreement: Agreement,
}

pub(super) enum Buckets {
    Host(HostBuckets),
    Device(DeviceBuckets),
}

/// A reduction in progress, shared by the step and the parameters that it watches.
pub(super) struct InFlightReduction {
    plan: Arc<BucketPlan>,
    group: ProcessGroup,
    /// `None` when the step has ended.
    state: Mutex<Option<State>>,
}

struct State {
    arrivals: Arrivals,
    buckets: Buckets,
}

impl fmt::Debug for InFlightReduction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "InFlightReduction({} buckets)", self.plan.buckets())
    }
}

impl InFlightReduction {
    /// Starts with empty buckets, or with the accumulated gradients of the parameters that `used` marks.
    pub fn new(
        plan: Arc<BucketPlan>,
        group: ProcessGroup,
        used: Vec<bool>,
        has_samples: bool,
        buckets: Buckets,
    ) -> Self {
        let arrivals = Arrivals::new(plan.clone(), used, has_samples);
        Self { plan, group, state: Mutex::new(Some(State { arrivals, buckets })) }
    }

    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn slot_of(&self, id: ParamId) -> Option<usize> {
        self.plan.slot_of(id)
    }

    /// Registers a use of a parameter in forward. Returns its number in the step, or `None` if the step has ended.
    pub fn use_in_forward(&self, slot: usize) -> Option<usize> {
        Some(self.state().as_mut()?.arrivals.use_in_forward(slot))
    }

    /// Registers the gradient of one use of a parameter. `read` and `keep` return the sum of all that have
    /// arrived.
    pub fn arrived<T>(
        &self,
        slot: usize,
        gradient: impl FnOnce() -> T,
        read: fn(T) -> Result<Values, String>,
        keep: fn(T) -> DeviceGradient,
    ) {
        let mut state = self.state();
        let Some(State { arrivals, buckets }) = &mut *state else { return };
        if arrivals.arrive(slot) {
            match buckets {
                Buckets::Host(host) => host.arrive(arrivals, slot, || read(gradient())),
                Buckets::Device(device) => device.arrive(arrivals, slot, keep(gradient())),
            }
        }
    }

    /// Whether a gradient is in its bucket. If not, it may still arrive from another thread.
    pub fn has(&self, slot: usize) -> bool {
        self.state().as_ref().is_some_and(|state| state.arrivals.has(slot))
    }

    /// Writes the gradient that backward returned for a parameter, if any. Returns false and writes nothing if the
    /// gradient has arrived meanwhile.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn write<const D: usize>(
        &self,
        slot: usize,
        gradient: Option<Tensor<D>>,
        device: &Device,
    ) -> Result<bool> {
        let mut state = self.state();
        let Some(State { arrivals, buckets }) = &mut *state else { return Ok(false) };
        if arrivals.has(slot) {
            return Ok(false);
        }
        match buckets {
            Buckets::Host(host) => host.write(arrivals, slot, gradient)?,
            Buckets::Device(buckets) => buckets.write(arrivals, slot, gradient, device),
        }
        Ok(true)
    }

    /// Compares a gradient that has arrived with the one that backward returned.
    ///
    /// # Errors
    /// If the gradient cannot be read from its device.
    pub fn compare<const D: usize>(
        &self,
        slot: usize,
        left: impl FnOnce() -> Option<Tensor<D>>,
    ) -> Result<()> {
        let mut state = self.state();
        let Some(State { arrivals, buckets }) = &mut *state else { return Ok(()) };
        let unchanged = match buckets {
            Buckets::Host(host) => host.is_unchanged(slot, left)?,
            Buckets::Device(device) => device.is_unchanged(slot, left),
        };
        if !unchanged {
            arrivals.differ(slot);
        }
        Ok(())
    }

    /// Ends the step: reduces the remaining buckets, waits for all of them and returns the sums, with those of
    /// `totals` `[n]` and of `flags`. In device memory, only the device waits.
    ///
    /// # Errors
    /// The first error on this rank or in the group, or an error that a gradient is missing.
    pub fn finish(&self, totals: Option<Tensor<1>>, flags: &[f32]) -> Result<ReducedGradients> {
        // Nothing arrives from now on. Other threads do not wait for the sums. `Step` finishes a reduction once.
        let State { arrivals, buckets } = self.state().take().expect("a reduction in progress");
        let (users, spoiled) = arrivals.end().inspect_err(|error| self.group.abort(error.to_string()))?;
        let mut message = Message { flags: flags.to_vec(), users, spoiled };
        let ranks = self.group.world_size();
        let (buckets, totals, agreement) = match buckets {
            Buckets::Host(host) => {
                let (buckets, totals) = host.finish(totals, &mut message.flags, &mut message.users)?;
                (buckets, totals, Agreement::known(message, ranks))
            }
            Buckets::Device(device) => {
                let (buckets, totals) = device.finish(totals)?;
                let sum = |values| self.group.all_reduce_async(values, ReduceOp::Sum);
                (buckets, totals, Agreement::start(message, ranks, sum)?)
            }
        };
        Ok(ReducedGradients { buckets, totals, agreement })
    }
}

#[cfg(test)]
mod tests {
    use super::{super::accumulate::Weights, super::hook::BucketSender, *};
    use crate::gradient::BucketSizes;
    use burn::nn::LinearConfig;
    use burn::tensor::TensorData;

    #[test]
    fn a_gradient_that_arrives_before_it_is_written_counts_once() {
        let device = Device::flex();
        let layer = LinearConfig::new(2, 2).init(&device.clone().autodiff());
        let plan = Arc::new(BucketPlan::new(&layer, BucketSizes::default()));
        let [weight, bias] =
            [layer.weight.id, layer.bias.as_ref().unwrap().id].map(|id| plan.slot_of(id).unwrap());
        let group = ProcessGroup::solo();
        let sender = BucketSender { group: group.clone(), hook: None };
        let weights = Weights { own: 1.0, accumulated: None };
        let buffers = vec![Vec::with_capacity(plan.length(0))];
        let buckets = Buckets::Host(HostBuckets::new(plan.clone(), sender, weights, buffers, usize::MAX));
        let reduction = InFlightReduction::new(plan, group, vec![false; 2], true, buckets);
        let all = |value: f32, count| TensorData::new(vec![value; count], [count]);
        let tensor = |data| Some(Tensor::<1>::from_data(data, &device));

        // `finish` finds that the gradient is missing, another thread's backward delivers it, and `finish`
        // writes its own copy.
        assert!(!reduction.has(weight));
        reduction.arrived(weight, || Values::Read(all(1.0, 4)), Ok, |_| unreachable!("host buckets"));
        assert!(!reduction.write(weight, tensor(all(1.0, 4)), &device).unwrap());
        assert!(!reduction.has(bias));
        assert!(reduction.write(bias, tensor(all(2.0, 2)), &device).unwrap());

        let reduced = reduction.finish(None, &[]).unwrap();
        let bucket = reduced.buckets[0].clone().unwrap().into_data().try_to_vec::<f32>().unwrap();
        assert_eq!(bucket, [2.0, 2.0, 1.0, 1.0, 1.0, 1.0]);
        let agreed = reduced.agreement.wait().unwrap();
        assert_eq!((agreed.users, agreed.again), (vec![1, 1, 1], None));
    }
}
