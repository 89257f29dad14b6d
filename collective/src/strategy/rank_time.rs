//! Breakdown of a rank's training time, by its host's clock.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Breakdown of one rank's training time in one epoch and one process: a run that was resumed in the
/// middle of an epoch counts only the time since.
///
/// The rest of [`training`](Self::training) is computation: forward, backward, the optimizer,
/// and communication that overlaps with backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTime {
    /// All steps, without evaluation.
    pub training: Duration,
    /// Waiting for the next batch.
    pub data: Duration,
    /// Waiting for the gradients of all ranks after backward. Where gradients stay in the
    /// devices' memory, the devices wait and the host does not: then it is only what the host waited.
    pub gradients: Duration,
}
