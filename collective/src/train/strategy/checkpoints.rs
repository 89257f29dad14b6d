//! Checkpoints and coordinated stops between two optimizer steps.

use super::{EpochReport, RunControl, Snapshot};
use std::{
    ops::BitOrAssign,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
};

/// Stores checkpoints, on rank 0 only.
pub trait CheckpointSink: Send + Sync {
    /// Stores a checkpoint, or starts to store it when the one before is stored. The other ranks wait for this call.
    ///
    /// # Errors
    /// The error message for the user, also that of the checkpoint before, which ends the run on all ranks.
    fn save(&self, snapshot: Snapshot) -> Result<(), String>;

    /// Waits until the last checkpoint is stored. Called before the run ends or stops.
    ///
    /// # Errors
    /// The error message for the user, which ends the run on all ranks.
    fn flush(&self) -> Result<(), String> {
        Ok(())
    }

    /// Reads the best checkpoint so far, if there is one.
    ///
    /// # Errors
    /// The error message for the user, which ends the run on all ranks.
    fn best(&self) -> Result<Option<Snapshot>, String> {
        Ok(None)
    }

    /// Called after an epoch, before its checkpoint, with requests like those of a callback on rank 0.
    fn epoch_done(&self, _report: &EpochReport, _control: &mut RunControl) {}
}

/// Schedule and storage of checkpoints.
#[derive(Clone, Default)]
pub struct Checkpoints {
    /// Optimizer steps between checkpoints, besides those at the end of every epoch; equal on all ranks.
    pub every: Option<usize>,
    /// Storage on rank 0; ignored on the other ranks.
    pub sink: Option<Arc<dyn CheckpointSink>>,
    /// Whether the weights of the best checkpoint are loaded, evaluated and returned at the end.
    pub load_best: bool,
}

/// A request to stop a run early.
///
/// Every rank is asked before each step's gradients are averaged, and at the end of every epoch. If any rank's answer
/// is not 0, all ranks finish the step, take a checkpoint and stop.
pub struct StopRequest {
    poll: Box<dyn Fn() -> u8 + Send + Sync>,
    signal: AtomicU8,
}

impl StopRequest {
    /// Creates a request. `poll` returns 0 to continue, or a number such as a signal's to stop.
    pub fn new(poll: impl Fn() -> u8 + Send + Sync + 'static) -> Self {
        Self { poll: Box::new(poll), signal: AtomicU8::new(0) }
    }

    /// Largest number of all ranks, if the run stopped because of it.
    pub fn signal(&self) -> Option<u8> {
        Some(self.signal.load(Ordering::Relaxed)).filter(|signal| *signal > 0)
    }

    /// This rank's answer: 0 to continue.
    pub(super) fn poll(&self) -> u8 {
        (self.poll)()
    }

    pub(super) fn set(&self, signal: u8) {
        self.signal.store(signal, Ordering::Relaxed);
    }
}

/// What ranks request in a step.
#[derive(Clone, Copy, Default)]
pub(super) struct StepRequests {
    /// burn-train's interrupter or a [`StopRequest`]: an immediate stop.
    pub stop: bool,
    /// A callback: the end of training, with an evaluation.
    pub end: bool,
    /// A checkpoint.
    pub save: bool,
}

impl StepRequests {
    /// Number of flags.
    pub const FLAGS: usize = 3;

    /// Values that are summed over all ranks.
    pub fn flags(self) -> Vec<f32> {
        [self.stop, self.end, self.save].map(|flag| f32::from(u8::from(flag))).into()
    }

    /// The requests of all ranks, from the sums of their flags.
    pub fn from_sums(sums: &[f32]) -> Self {
        let any = |at: usize| sums.get(at).is_some_and(|ranks| *ranks > 0.0);
        Self { stop: any(0), end: any(1), save: any(2) }
    }

    pub fn any(self) -> bool {
        self.stop || self.end || self.save
    }
}

impl BitOrAssign for StepRequests {
    fn bitor_assign(&mut self, other: Self) {
        self.stop |= other.stop;
        self.end |= other.end;
        self.save |= other.save;
    }
}
