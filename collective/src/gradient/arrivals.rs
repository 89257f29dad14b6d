//! Tracks which gradients of a step are in their buckets, for host and device buckets. A gradient is complete
//! when one has arrived for every use of its parameter in forward.

use super::{buckets::BucketPlan, watch::DepthAnchors};
use crate::Error;
use burn::tensor::{Device, Tensor};
use std::sync::Arc;

pub(super) struct Arrivals {
    plan: Arc<BucketPlan>,
    anchors: Arc<DepthAnchors>,
    /// Uses of parameters in forward.
    uses: usize,
    /// Uses of each parameter whose gradients have not arrived.
    pending: Vec<usize>,
    /// Whether a gradient is in its bucket.
    written: Vec<bool>,
    /// Whether there was a gradient that counts.
    used: Vec<bool>,
    /// Gradients that each bucket waits for.
    missing: Vec<usize>,
    /// Why the buckets are not what backward left.
    spoiled: Option<String>,
    ended: bool,
}

impl Arrivals {
    /// Creates the state of a step; `used` marks the parameters with accumulated gradients.
    pub fn new(plan: Arc<BucketPlan>, anchors: Arc<DepthAnchors>, used: Vec<bool>) -> Self {
        let slots = plan.slots.len();
        let missing = plan.members.iter().map(Vec::len).collect();
        let (pending, written) = (vec![0; slots], vec![false; slots]);
        Self { plan, anchors, uses: 0, pending, written, used, missing, spoiled: None, ended: false }
    }

    /// Registers a use of a parameter in forward. Returns the anchor of this use, or `None` if it is not to be
    /// watched: the step has ended, or its device is not that of the others.
    pub fn use_in_forward(&mut self, slot: usize, device: &Device) -> Option<Tensor<1>> {
        if self.ended {
            return None;
        }
        let anchor = self.anchors.anchor(self.uses, device)?;
        self.uses += 1;
        self.pending[slot] += 1;
        if self.written[slot] {
            self.spoil("a parameter was used again after backward", slot);
        }
        Some(anchor)
    }

    /// Registers the gradient of one use. Whether the parameter's gradient is complete and to be written.
    pub fn arrive(&mut self, slot: usize) -> bool {
        self.pending[slot] = self.pending[slot].saturating_sub(1);
        if self.ended || self.written[slot] {
            self.spoil("a gradient changed after it was complete", slot);
            return false;
        }
        self.pending[slot] == 0
    }

    /// Whether a gradient is in its bucket.
    pub fn has(&self, slot: usize) -> bool {
        self.written[slot]
    }

    /// Registers that a gradient is in its bucket, and whether it counts. Whether the bucket is full.
    pub fn write(&mut self, slot: usize, counts: bool) -> bool {
        let bucket = self.plan.slots[slot].bucket;
        self.used[slot] |= counts;
        self.written[slot] = true;
        self.missing[bucket] -= 1;
        self.missing[bucket] == 0
    }

    /// Whether all gradients of a bucket are in it; false if there is no such bucket.
    pub fn is_full(&self, bucket: usize) -> bool {
        self.missing.get(bucket) == Some(&0)
    }

    /// Registers that backward left another gradient than the one that arrived.
    pub fn differ(&mut self, slot: usize) {
        self.spoil("a gradient was changed after backward", slot);
    }

    fn spoil(&mut self, what: &str, slot: usize) {
        let path = &self.plan.slots[slot].path;
        self.spoiled.get_or_insert_with(|| format!("{what}: {path}"));
    }

    /// From now on nothing arrives.
    pub fn end(&mut self) {
        self.ended = true;
    }

    /// Which parameters were used, and whether the step is to be repeated: to be summed over ranks.
    pub fn flags(&self) -> Vec<f32> {
        let flags = self.used.iter().copied().chain([self.spoiled.is_some()]);
        flags.map(|flag| f32::from(u8::from(flag))).collect()
    }

    /// What the sums of all ranks' [`flags`](Arrivals::flags) say: on how many ranks each parameter was used,
    /// and why the step is to be done again, if it is.
    pub fn outcome(spoiled: Option<String>, sums: &[f32]) -> (Vec<usize>, Option<String>) {
        let (used, again) = sums.split_at(sums.len() - 1);
        let users = used.iter().map(|ranks| *ranks as usize).collect();
        let again =
            (again[0] > 0.0).then(|| spoiled.unwrap_or_else(|| "another rank could not overlap".into()));
        (users, again)
    }

    /// Takes why the buckets are not what backward left.
    pub fn take_spoiled(&mut self) -> Option<String> {
        self.spoiled.take()
    }
}

/// For a step that ends before all buckets are full.
pub(super) fn parameter_is_gone() -> Error {
    Error::Invalid("a parameter that was there when the reducer was made is gone: make a new reducer".into())
}

/// For a gradient that cannot be put into its bucket.
pub(super) fn unreadable(plan: &BucketPlan, slot: usize, reason: String) -> Error {
    Error::Io { what: format!("reading the gradient of {}", plan.slots[slot].path), reason }
}
