//! News of a round, and what the launchers of all machines do because of them.

use super::{
    generation::{FromRank, Generation},
    outcome::{Failure, Outcome},
    port::ReservedPort,
};
use anyhow::Result;
use serde::{Deserialize, Serialize};

/// What happens in a round.
#[derive(Debug, Serialize, Deserialize)]
pub enum News {
    /// A rank has sent a message about its group.
    Message(usize, FromRank),
    /// A rank has ended, a machine is lost, or there is a stop signal.
    Outcome(Outcome),
}

/// What all launchers do because of the news of a round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Decision {
    /// End the round.
    End(Outcome),
    /// Begin this generation, with new processes for the ranks that have failed.
    Replace { generation: Generation, failures: Vec<Failure> },
    /// Kill these ranks, or those of them that are stopped, so that the group can be complete again.
    Kill { ranks: Vec<usize>, only_stopped: bool },
}

impl Decision {
    /// Reserves the port of a generation that begins, in place of that of the one before.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn reserve_port(&mut self, reserved: &mut Option<ReservedPort>) -> Result<()> {
        if let Decision::Replace { generation, .. } = self {
            generation.master_port = reserved.insert(ReservedPort::new()?).number;
        }
        Ok(())
    }
}
