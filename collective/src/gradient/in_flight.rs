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
