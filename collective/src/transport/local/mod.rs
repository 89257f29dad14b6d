//! How ranks of one machine meet, whether they are threads or processes: gates in shared memory.
//!
//! Every call begins at the entry gate, where each rank has published what it calls. No rank acts
//! on a peer's data before all have arrived there and agree. What follows is a sequence of gates
//! that is the same on every rank, so that the number of gates a rank has passed (its *steps*)
//! tells who is behind whom.
//!
//! The first rank that fails says so in the header. From then on every wait of every rank ends
//! with an error, and so does every later call: a group does not recover.

mod announcement;
mod failure;
mod message;
pub mod ops;
pub mod region;
mod session;
mod stream;
mod wait;

use super::method::MethodCall;
use crate::{Error, Result, World};
use failure::Failure;
use region::{ABSENT, GateId, LEFT, MAX_WORLD, Memory, PRESENT, Region};
pub use session::Session;
use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::Ordering::{Acquire, Relaxed, Release},
};
use wait::Word;

/// Tells whether a peer can still arrive.
pub trait Liveness: Send + Sync + std::fmt::Debug {
    /// Why the peer is gone, if it is.
    fn lost(&self, rank: usize) -> Option<String>;
}

/// One rank of a group on one machine.
#[derive(Debug)]
pub struct Member<M: Memory> {
    region: Arc<Region<M>>,
    rank: usize,
    liveness: Box<dyn Liveness>,
    state: Mutex<State>,
}

/// What only this rank knows; locked during a call.
#[derive(Debug, Default)]
struct State {
    /// Calls begun.
    calls: usize,
    /// Gates arrived at, by gate and in all.
    arrivals: [u32; GateId::COUNT],
    steps: u32,
    failed: Option<Error>,
}

impl<M: Memory> Member<M> {
    /// Takes rank `rank` of the group that lives in `region`.
    pub fn join(region: Arc<Region<M>>, rank: usize, liveness: Box<dyn Liveness>) -> Result<Self> {
        let world = region.world();
        if rank >= world {
            return Err(Error::Invalid(format!("rank {rank} in a world of {world}: ranks count from 0")));
        }
        let taken = region.slot(rank).presence.compare_exchange(ABSENT, PRESENT, Acquire, Relaxed);
        if taken.is_err() {
            return Err(Error::Invalid(format!("two ranks of this machine claim to be rank {rank}")));
        }
        region.slot(rank).pid.store(std::process::id(), Release);
        Ok(Member { region, rank, liveness, state: Mutex::default() })
    }

    /// Asks `liveness` about peers that keep this rank waiting.
    pub fn watch(&mut self, liveness: Box<dyn Liveness>) {
        self.liveness = liveness;
    }

    pub fn world(&self) -> World {
        World { rank: self.rank, size: self.region.world() }
    }

    pub fn region(&self) -> &Region<M> {
        &self.region
    }

    /// Begins a collective: publishes it for the others to compare. Fails if the group has failed.
    pub fn begin<'a>(&'a self, call: MethodCall<'a>) -> Result<Session<'a, M>> {
        let mut session = self.open(call)?;
        session.state.calls += 1;
        self.region.slot(self.rank).calls[session.parity()].publish(call);
        Ok(session)
    }

    fn open<'a>(&'a self, call: MethodCall<'a>) -> Result<Session<'a, M>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = &state.failed {
            return Err(Error::Poisoned(Box::new(first.clone())));
        }
        let mut session = Session::new(self, state, call);
        match self.failure() {
            Some(failure) => Err(session.heard(failure, &[])),
            None => Ok(session),
        }
    }

    /// Ends every wait of every rank with an error.
    pub fn abort(&self) {
        self.declare(Failure::Aborted { by: self.rank });
    }

    /// Whether some rank has failed.
    pub fn has_failed(&self) -> bool {
        self.region.header().failed.load(Acquire) != 0
    }

    /// Why rank `rank` cannot arrive any more, if so. Asks the system only if `look`.
    fn gone(&self, rank: usize, look: bool) -> Option<String> {
        if self.region.slot(rank).presence.load(Acquire) == LEFT {
            return Some("it closed its communicator".to_string());
        }
        if look { self.liveness.lost(rank) } else { None }
    }

    fn failure(&self) -> Option<Failure> {
        Failure::decode(self.region.header().failed.load(Acquire), self.region.world())
    }

    /// Tells the group, unless another failure came first.
    fn declare(&self, failure: Failure) {
        let header = self.region.header();
        let _ = header.failed.compare_exchange(0, failure.encode(), Release, Relaxed);
        self.wake_all();
    }

    /// Makes every waiting rank look around.
    fn wake_all(&self) {
        self.region.header().gates.iter().for_each(|gate| gate.0.wake());
        self.region.slots().flat_map(|slot| [&slot.outbox.posted, &slot.outbox.taken]).for_each(Word::wake);
    }
}

impl<M: Memory> Drop for Member<M> {
    fn drop(&mut self) {
        self.region.slot(self.rank).presence.store(LEFT, Release);
        self.wake_all();
    }
}

/// Peers that cannot die on their own: threads of this process.
#[derive(Debug)]
pub struct Immortal;

impl Liveness for Immortal {
    fn lost(&self, _rank: usize) -> Option<String> {
        None
    }
}

/// Complains unless a group of `world` ranks may live on one machine.
pub fn check_world(world: usize) -> Result<()> {
    if (1..=MAX_WORLD).contains(&world) {
        return Ok(());
    }
    Err(Error::Invalid(format!("a group of {world} ranks on one machine: choose 1 to {MAX_WORLD}")))
}
