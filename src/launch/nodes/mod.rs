//! Coordination of the launchers of several machines.
//!
//! They connect to node 0's launcher, begin each round together and end it with one outcome. A launcher sends the
//! outcomes of its ranks to the [`CoordinatorServer`] through its [`Agent`]. A round begins when all connected launchers
//! have joined it, so that messages of an earlier round have arrived before.

mod agent;
mod coordinator;
mod server;

pub use agent::Agent;
pub use server::CoordinatorServer;

use super::{
    environment::Round,
    outcome::{Decision, News},
};
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Number of machines of a job, and time limits for them to join.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    pub min: usize,
    pub max: usize,
    /// Time limit for `min` machines to join.
    pub join_timeout: Duration,
    /// Time to wait for more machines, once there are `min`.
    pub last_call: Duration,
}

/// Message from a launcher to the coordinator.
#[derive(Debug, Serialize, Deserialize)]
enum ToCoordinator {
    /// The machine is ready for the next round.
    Join(Join),
    /// News of the round on the machine.
    News(News),
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
    /// What all machines of the round do.
    Decided(Decision),
    /// The launcher is refused, or no round will begin.
    Refused(String),
}
