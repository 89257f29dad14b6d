//! Coordination of the launchers of several machines.
//!
//! They connect to node 0's launcher, begin each round together and end it with one outcome. A launcher sends the
//! outcomes of its ranks to the [`CoordinatorServer`] through its [`Agent`].

mod agent;
mod coordinator;
mod table;

pub use agent::Agent;
pub use coordinator::CoordinatorServer;
pub use table::Rules;

use super::{environment::Round, outcome::Outcome};
use serde::{Deserialize, Serialize};

/// Message from a launcher to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
enum ToCoordinator {
    /// The machine is ready for the next round.
    Join(Join),
    /// Outcome of a rank of the machine, or of the machine. That of an earlier round is ignored.
    Ended { restarts: usize, outcome: Outcome },
}

/// A machine that joins a round.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Join {
    /// Value of its `--node-rank`.
    node: usize,
    /// Number of ranks that it will start.
    ranks: usize,
    host: String,
}

/// Message from the coordinator to a launcher.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum FromCoordinator {
    /// A round begins.
    Begin(Round),
    /// A round has ended.
    End { restarts: usize, ending: Outcome },
    /// The launcher is refused, or no round will begin.
    Refused(String),
}
