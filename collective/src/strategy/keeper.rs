//! What may happen between two optimizer steps on all ranks together: keeping a checkpoint, and
//! stopping.

use super::{DistributedDataParallel, EpochReport, Snapshot};
use burn::train::LearnerModel;
use std::sync::Arc;

/// Keeps checkpoints, on rank 0 only; the other ranks wait for it.
pub trait Keeper: Send + Sync {
    /// Keeps one. An error ends the run on all ranks.
    ///
    /// # Errors
    /// What went wrong, for the user.
    fn keep(&self, snapshot: &Snapshot) -> Result<(), String>;

    /// Whether training is over after this evaluation, although there are epochs left.
    fn is_over(&self, _report: &EpochReport) -> bool {
        false
    }
}

/// When checkpoints are taken.
#[derive(Clone, Default)]
pub struct Checkpoints {
    /// After each of so many optimizer steps, besides the end of every epoch; the same on all ranks.
    pub every: Option<usize>,
    /// Rank 0's; the other ranks' is not used.
    pub keeper: Option<Arc<dyn Keeper>>,
}

/// Asked before each step's gradients are averaged: 0 to go on, or a number, such as a signal's, to
/// finish the step on all ranks, keep a checkpoint and leave. The largest number of all ranks is
/// the run's: see [`DistributedDataParallel::stopped`].
pub type StopRequest = Arc<dyn Fn() -> u8 + Send + Sync>;

impl<M: LearnerModel> DistributedDataParallel<M> {
    /// Takes checkpoints. All ranks must, or none.
    pub fn with_checkpoints(mut self, checkpoints: Checkpoints) -> Self {
        self.checkpoints = Some(checkpoints);
        self
    }

    /// Begins where a run was, with the same snapshot on every rank:
    /// [`Snapshot::share`] hands it out. At the same world size and batch, the run goes on with the
    /// bits it would have had without the break; at another one, with the samples that are left, in
    /// the same order.
    ///
    /// Burn builds the optimizer's state on `Device::default()` before it moves it to this rank's
    /// device; where that does not exist, the environment variable `BURN_DEVICE` names another.
    pub fn with_resume(mut self, snapshot: Option<Snapshot>) -> Self {
        self.resume = snapshot;
        self
    }

    /// Seeds the device's random numbers before each step from `seed`, the rank and the number of
    /// the step, so that a run that goes on from a checkpoint drops out the same units.
    pub fn with_seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Stops together when any rank is asked to.
    pub fn with_stop(mut self, request: StopRequest) -> Self {
        self.stop = Some(request);
        self
    }

    /// What this rank was asked: 0 is to go on.
    pub(super) fn asked(&self) -> u8 {
        self.stop.as_ref().map_or(0, |request| request())
    }
}
