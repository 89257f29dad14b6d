//! Synchronisation of ranks on one machine, threads or processes, through gates in shared memory.
//!
//! Every call begins at the entry gate, where each rank has published its call. No rank accesses a peer's
//! data before all have arrived there with equal calls. The following gates are the same on every rank, so
//! that the number of gates that a rank has passed (its *steps*) tells which ranks are behind.
//!
//! The first rank that fails records the failure in the header. All waits and all later calls of all ranks
//! then fail: a group does not recover. A process that has ended is detected by the control plane, which aborts
//! the communicator.

mod failure;
pub mod memory;
mod message;
mod ops;
pub mod region;
mod session;
mod stream;
mod wait;

use crate::{Error, Result};
use failure::Failure;
use region::{ABSENT, GateId, LEFT, MAX_WORLD, PRESENT, Region};
use session::Session;
use std::sync::{
    Arc, Mutex,
    atomic::Ordering::{Acquire, Relaxed, Release},
};
use wait::Word;

/// One rank of a group on one machine.
#[derive(Debug)]
pub struct LocalRank {
    region: Arc<Region>,
    rank: usize,
    state: Mutex<LocalState>,
}

/// Private state of this rank, locked during a call.
#[derive(Debug, Default)]
struct LocalState {
    /// Number of calls begun.
    calls: usize,
    /// Arrivals at each gate.
    arrivals: [u32; GateId::COUNT],
    steps: u32,
    failed: Option<Error>,
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
        Ok(LocalRank { region, rank, state: Mutex::default() })
    }

    /// Whether rank `rank` has closed its communicator.
    fn has_left(&self, rank: usize) -> bool {
        self.region.slot(rank).presence.load(Acquire) == LEFT
    }

    fn failure(&self) -> Option<Failure> {
        Failure::decode(self.region.header().failed.load(Acquire), self.region.world())
    }

    /// Records the failure of the group, unless another one came first.
    fn declare(&self, failure: Failure) {
        let header = self.region.header();
        let _ = header.failed.compare_exchange(0, failure.encode(), Release, Relaxed);
        self.wake_all();
    }

    /// Makes every waiting rank check for failures.
    fn wake_all(&self) {
        self.region.header().gates.iter().for_each(Word::wake);
        self.region.slots().flat_map(|slot| [&slot.outbox.posted, &slot.outbox.taken]).for_each(Word::wake);
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.region.slot(self.rank).presence.store(LEFT, Release);
        self.wake_all();
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
