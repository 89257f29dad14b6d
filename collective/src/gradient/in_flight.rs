//! The reduction of one step's gradients, shared by the step and the parameters that it watches.

use super::step_buckets::StepBuckets;
use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

/// The buckets of a step; `None` when it has ended.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        ProcessGroup,
        gradient::{
            BucketSizes,
            accumulate::{AccumulatedGradients, Weights},
            buckets::BucketPlan,
            hook::BucketSender,
        },
    };
    use burn::nn::LinearConfig;
    use burn::tensor::{Device, Tensor};
    use std::sync::Arc;

    #[test]
    fn a_gradient_that_arrives_before_it_is_collected_counts_once() {
        let device = Device::flex();
        let layer = LinearConfig::new(2, 2).init(&device.clone().autodiff());
        let plan = Arc::new(BucketPlan::new(&layer, BucketSizes::default(), None));
        let [weight, bias] = [layer.weight.id, layer.bias.as_ref().unwrap().id];
        let sender = BucketSender { group: ProcessGroup::solo(), hook: None };
        let weights = Weights { own: 1.0, accumulated: None };
        let none = AccumulatedGradients::default();
        let buckets = StepBuckets::new(plan.clone(), sender, false, weights, &none);
        let reduction = InFlightReduction::new(buckets);
        let slot = |id| plan.slot_of(id).unwrap();
        let arrived = Tensor::<1>::full([4], 1.0, &device);
        let grads = vec![(weight, arrived.clone()), (bias, Tensor::full([2], 2.0, &device))];

        // Another thread's backward delivers a gradient before its own copy is collected.
        reduction.with(|buckets| buckets.arrive(slot(weight), || arrived));
        let mut buckets = reduction.end().unwrap();
        buckets.collect(grads, &layer).unwrap();

        let mut reduced = buckets.finish(None, &[]).unwrap();
        let read = |id| {
            let gradient = reduced.gradients[slot(id)].clone().unwrap();
            gradient.into_data().try_to_vec::<f32>().unwrap()
        };
        assert_eq!(read(bias), [2.0; 2]);
        assert_eq!(read(weight), [1.0; 4]);
        let agreed = reduced.agreement.wait().unwrap();
        assert_eq!((agreed.users, agreed.again), (vec![1, 1, 1], None));
    }
}
