//! Tracks which gradients of a step are in their buckets. A gradient is complete when one has arrived for every use of
//! its parameter in forward.

use super::buckets::BucketPlan;
use crate::{Error, Result};
use std::sync::Arc;

pub(super) struct Arrivals {
    plan: Arc<BucketPlan>,
    /// Number of uses of parameters in forward.
    uses: usize,
    /// Number of uses of each parameter whose gradients have not arrived.
    pending: Vec<usize>,
    /// Whether a gradient is in its bucket.
    written: Vec<bool>,
    /// Whether a parameter has a gradient of real samples.
    used: Vec<bool>,
    /// Whether this rank has samples in this step.
    has_samples: bool,
    /// Number of gradients that each bucket waits for.
    missing: Vec<usize>,
    /// Reason why the buckets differ from the gradients that backward returned.
    spoiled: Option<String>,
    /// First error. No bucket is reduced after it.
    failure: Option<Error>,
}

impl Arrivals {
    pub fn new(plan: Arc<BucketPlan>, has_samples: bool) -> Self {
        let slots = plan.slots.len();
        let missing = plan.members.iter().map(Vec::len).collect();
        let (pending, written, used) = (vec![0; slots], vec![false; slots], vec![false; slots]);
        Self { plan, uses: 0, pending, written, used, has_samples, missing, spoiled: None, failure: None }
    }

    /// Registers a use of a parameter in forward and returns its index in the step.
    pub fn use_in_forward(&mut self, slot: usize) -> usize {
        self.uses += 1;
        self.pending[slot] += 1;
        if self.written[slot] {
            self.spoil("a parameter was used again after backward", slot);
        }
        self.uses - 1
    }

    /// Registers the gradient of one use. Returns whether the parameter's gradient is complete.
    pub fn arrive(&mut self, slot: usize) -> bool {
        self.pending[slot] = self.pending[slot].saturating_sub(1);
        if self.written[slot] {
            self.spoil("a gradient changed after it was complete", slot);
            return false;
        }
        self.pending[slot] == 0
    }

    /// Whether a gradient is in its bucket.
    pub fn has(&self, slot: usize) -> bool {
        self.written[slot]
    }

    /// Registers that a gradient is in its bucket, and whether it is one of real samples.
    pub fn write(&mut self, slot: usize, counts: bool) {
        self.used[slot] = counts;
        self.written[slot] = true;
        self.missing[self.plan.slots[slot].bucket] -= 1;
    }

    /// Whether a bucket can be reduced: all its gradients are in it, and none has failed.
    pub fn is_ready(&self, bucket: usize) -> bool {
        self.missing.get(bucket) == Some(&0) && self.failure.is_none()
    }

    /// Registers that backward returned a different gradient than the one that arrived.
    pub fn differ(&mut self, slot: usize) {
        self.spoil("a gradient was changed after backward", slot);
    }

    fn spoil(&mut self, what: &str, slot: usize) {
        let path = &self.plan.slots[slot].path;
        self.spoiled.get_or_insert_with(|| format!("{what}: {path}"));
    }

    /// Registers that a gradient cannot be put into its bucket.
    pub fn unreadable(&mut self, slot: usize, reason: String) {
        let what = format!("reading the gradient of {}", self.plan.slots[slot].path);
        self.fail(Error::Io { what, reason });
    }

    /// Registers an error, which the end of the step returns.
    pub fn fail(&mut self, error: Error) {
        self.failure.get_or_insert(error);
    }

    /// Ends the step. Returns flags to be summed over ranks, and the reason for a repetition.
    ///
    /// # Errors
    /// The first registered error, or an error that a gradient is missing.
    pub fn end(&mut self) -> Result<(Vec<f32>, Option<String>)> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        if self.missing.iter().any(|missing| *missing > 0) {
            return Err(Error::Invalid(
                "a parameter was removed from the model after the reducer was created: create a new reducer"
                    .into(),
            ));
        }
        let flags = self.used.iter().copied().chain([self.has_samples, self.spoiled.is_some()]);
        Ok((flags.map(|flag| f32::from(u8::from(flag))).collect(), self.spoiled.take()))
    }
}
