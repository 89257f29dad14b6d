//! What a reducer reports: buckets, overlap, loss scale, and the use of parameters.

use super::Reducer;
use crate::precision::LossScaler;

impl Reducer {
    /// Number of buckets.
    pub fn buckets(&self) -> usize {
        self.plan.buckets()
    }

    /// Reason why overlap was disabled after it was requested, if it was.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Whether gradients stay in device memory.
    pub fn on_device(&self) -> bool {
        self.on_device
    }

    /// The current loss scale; 1 except for f16.
    pub fn loss_scale(&self) -> f32 {
        self.scaler.map_or(1.0, |scaler| scaler.scale)
    }

    /// Whether the last step was skipped because its gradients overflowed f16.
    pub fn skipped(&self) -> bool {
        self.scaler.is_some_and(|scaler| scaler.skipped)
    }

    /// Loss scale and number of steps since it last changed, for a checkpoint; `None` except for f16.
    pub(crate) fn scaler_state(&self) -> Option<(f32, u32)> {
        self.scaler.map(LossScaler::state)
    }

    /// Restores the loss scale of a checkpoint.
    pub(crate) fn restore_scaler(&mut self, state: Option<(f32, u32)>) {
        if let (Some(scaler), Some(state)) = (&mut self.scaler, state) {
            *scaler = LossScaler::restore(state);
        }
    }

    /// Parameters that only some ranks used in the last step, with the number of ranks, and unused ones.
    ///
    /// Ranks without samples do not count. Empty in a world of one.
    pub fn unused(&self) -> impl Iterator<Item = (&str, usize)> {
        let (with_samples, users) = self.users.split_last().unwrap_or((&0, &[]));
        let slots = self.plan.slots.iter().zip(users);
        slots.filter(|(_, users)| *users < with_samples).map(|(slot, users)| (slot.path.as_str(), *users))
    }
}
