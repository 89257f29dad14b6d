//! Where a rank's time goes, by its host's clock.

use serde::{Deserialize, Serialize};
use std::time::Duration;

/// What one rank's training time went into, in one epoch and one process: a run that was resumed in the
/// middle of an epoch knows only the time since.
///
/// The rest of [`training`](Self::training) is the rank's own work: forward, backward, the optimizer,
/// and communication that overlaps with backward.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RankTime {
    /// All steps, without evaluation.
    pub training: Duration,
    /// Until the next batch was built.
    pub data: Duration,
    /// After backward, until the gradients of all ranks were there. Where gradients stay in the
    /// devices' memory, the devices wait and the host does not: then it is only what the host waited.
    pub gradients: Duration,
}
