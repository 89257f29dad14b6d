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

use super::{environment::Round, generation::FromRank, live_recovery::Repair, outcome::Outcome};
use serde::{Deserialize, Serialize};

/// Message from a launcher to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
enum ToCoordinator {
    /// The machine is ready for the next round.
    Join(Join),
    /// Outcome of a rank of the machine, or of the machine. That of an earlier round is ignored.
    Ended { restarts: usize, outcome: Outcome },
    /// A message of a rank of the machine about its group.
    Forwarded { restarts: usize, rank: usize, message: FromRank },
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
    /// Ranks of the round are replaced, or killed. Rank 0 of the next generation listens at `master_port`.
    Repair { restarts: usize, repair: Repair, master_port: u16 },
    /// The launcher is refused, or no round will begin.
    Refused(String),
}
