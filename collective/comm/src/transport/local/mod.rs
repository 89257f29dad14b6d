//! Synchronisation of ranks on one machine, threads or processes, through gates in shared memory.
//!
//! Every call begins at the entry gate, where each rank has published its call. No rank accesses a peer's
//! data before all have arrived there with equal calls. The following gates are the same on every rank, so
//! that the number of gates that a rank has passed (its *steps*) tells which ranks are behind.
//!
//! After a call that failed, all later calls of the rank fail: a group does not recover. The other ranks wait until
//! their deadline, unless the control plane, which detects processes that have ended, aborts their communicators.

mod message;
mod ops;
mod os;
pub mod region;
mod session;
mod stream;
mod wait;

use crate::{Error, Result};
use region::{ABSENT, GateId, LEFT, MAX_WORLD, PRESENT, Region};
use session::Session;
use std::sync::{
    Arc, Mutex,
    atomic::{
        AtomicBool,
        Ordering::{Acquire, Relaxed, Release},
    },
};

/// One rank of a group on one machine.
#[derive(Debug)]
pub struct LocalRank {
    region: Arc<Region>,
    rank: usize,
    state: Mutex<LocalState>,
    aborted: AtomicBool,
}

/// Private state of this rank, locked during a call.
#[derive(Debug, Default)]
struct LocalState {
    /// Number of calls begun.
    calls: usize,
    /// Arrivals at each gate.
    arrivals: [u32; GateId::COUNT],
    steps: u32,
    /// Whether a call is in progress, or has failed.
    unfinished: bool,
}

impl LocalRank {
    /// Joins the group in `region` as rank `rank`.
    ///
    /// # Errors
    /// If the rank does not exist or is taken.
    pub(crate) fn join(region: Arc<Region>, rank: usize) -> Result<Self> {
        let world = region.world();
        if rank >= world {
            return Err(Error::Invalid(format!("rank {rank} in a world of {world}: ranks count from 0")));
        }
        let taken = region.slot(rank).presence.compare_exchange(ABSENT, PRESENT, Acquire, Relaxed);
        if taken.is_err() {
            return Err(Error::Invalid(format!("two processes of this machine have rank {rank}")));
        }
        Ok(LocalRank { region, rank, state: Mutex::default(), aborted: AtomicBool::new(false) })
    }

    /// Whether rank `rank` has closed its communicator.
    fn has_left(&self, rank: usize) -> bool {
        self.region.slot(rank).presence.load(Acquire) == LEFT
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.region.slot(self.rank).presence.store(LEFT, Release);
    }
}

/// Checks that a group of `world` ranks is possible on one machine.
///
/// # Errors
/// [`Error::Invalid`] if it is empty or too large.
pub fn check_world(world: usize) -> Result<()> {
    if (1..=MAX_WORLD).contains(&world) {
        return Ok(());
    }
    Err(Error::Invalid(format!("a group of {world} ranks on one machine: choose 1 to {MAX_WORLD}")))
}
