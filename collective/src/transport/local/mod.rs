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
mod stream;
mod wait;

use crate::{Error, Result, World, communicator::Call};
use announcement::Announced;
use failure::Failure;
use region::{ABSENT, GateId, LEFT, MAX_WORLD, Memory, PRESENT, Region};
use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant},
};
use wait::{Word, patiently, this_core};

/// Longest sleep before a waiting rank looks for failures, dead peers and its deadline.
const SLICE: Duration = Duration::from_millis(50);

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

/// One arrival: what [`Session::wait`] waits for.
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ticket {
    gate: GateId,
    target: u32,
    step: u32,
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
    pub fn begin<'a>(&'a self, call: &'a Call) -> Result<Session<'a, M>> {
        let mut session = self.open(call)?;
        session.state.calls += 1;
        self.region.slot(self.rank).calls[session.parity()].publish(call);
        Ok(session)
    }

    fn open<'a>(&'a self, call: &'a Call) -> Result<Session<'a, M>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(first) = &state.failed {
            return Err(Error::Poisoned(Box::new(first.clone())));
        }
        let started = Instant::now();
        let mut session = Session { member: self, state, call, started, finished: false };
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

/// A call under way on this rank.
#[derive(Debug)]
pub struct Session<'a, M: Memory> {
    member: &'a Member<M>,
    state: MutexGuard<'a, State>,
    call: &'a Call,
    started: Instant,
    finished: bool,
}

impl<'a, M: Memory> Session<'a, M> {
    /// 0 and 1 in turn, from call to call; the same on every rank.
    pub fn parity(&self) -> usize {
        self.state.calls % 2
    }

    pub fn arrive(&mut self, gate: GateId) -> Ticket {
        let member = self.member;
        let arrivals = &mut self.state.arrivals[gate.index()];
        *arrivals = arrivals.wrapping_add(1);
        let target = arrivals.wrapping_mul(member.region.world() as u32);
        self.state.steps = self.state.steps.wrapping_add(1);
        let word = &member.region.gate(gate).0;
        member.region.slot(member.rank).core.store(this_core(), Relaxed);
        let opened = word.increment() == target;
        // After the arrival itself: a rank whose steps are up to date has certainly arrived.
        member.region.slot(member.rank).steps.store(self.state.steps, Release);
        if opened {
            word.wake();
        }
        Ticket { gate, target, step: self.state.steps }
    }

    /// Returns when every rank has arrived at the ticket's gate.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        let region = &self.member.region;
        let late =
            |rank: &usize| region.slot(*rank).steps.load(Acquire).wrapping_sub(ticket.step) > u32::MAX / 2;
        self.wait_for(&region.gate(ticket.gate).0, ticket.target, &late)
    }

    /// Returns when `word` has reached `target`; ranks that `late` is true of are waited for.
    fn wait_for(&mut self, word: &Word, target: u32, late: &dyn Fn(&usize) -> bool) -> Result<()> {
        let member = self.member;
        let ranks = || 0..member.region.world();
        let crowded = || {
            let core = this_core();
            ranks().any(|rank| member.region.slot(rank).core.load(Relaxed) == core && late(&rank))
        };
        if patiently(|| word.reached(target), crowded) {
            return Ok(());
        }
        let mut looked = Instant::now();
        loop {
            let failure = member.failure();
            let behind: Vec<usize> = ranks().filter(late).collect();
            let look = looked.elapsed() >= SLICE;
            if look {
                looked = Instant::now();
            }
            let gone = behind.iter().find_map(|rank| Some((*rank, member.gone(*rank, look)?)));
            // The last to arrive may have done so, and left, while we looked.
            if word.reached(target) {
                return Ok(());
            }
            if let Some(failure) = failure {
                return Err(self.heard(failure, &behind));
            }
            if let Some((rank, reason)) = gone {
                return Err(self.fail(Failure::Lost { rank }, Error::PeerLost { rank, reason }));
            }
            let left = self.call.timeout.saturating_sub(self.started.elapsed());
            if left.is_zero() {
                let error = self.timeout(&behind);
                return Err(self.fail(Failure::TimedOut { by: member.rank }, error));
            }
            word.sleep(target, left.min(SLICE));
        }
    }

    /// Meets all ranks at the entry gate and makes sure that they make the same call.
    pub fn enter(&mut self) -> Result<()> {
        let ticket = self.arrive(GateId::Entry);
        self.wait(ticket)?;
        self.agree()
    }

    /// After the entry gate: do all ranks make the same call?
    pub fn agree(&mut self) -> Result<()> {
        let (region, parity) = (&self.member.region, self.parity());
        let announced = |rank: usize| region.slot(rank).calls[parity].read();
        let first = announced(0);
        let Some(other) = (1..region.world()).find(|rank| announced(*rank) != first) else {
            return Ok(());
        };
        let error = Error::Mismatch {
            rank_a: 0,
            call_a: first.describe(),
            rank_b: other,
            call_b: announced(other).describe(),
        };
        Err(self.fail(Failure::Mismatch { by: self.member.rank }, error))
    }

    /// An error if some rank has failed meanwhile.
    pub fn still_well(&mut self) -> Result<()> {
        self.member.failure().map_or(Ok(()), |failure| Err(self.heard(failure, &[])))
    }

    /// The call is done; without this, dropping the session fails the group.
    pub fn finish(mut self) {
        self.finished = true;
    }

    fn fail(&mut self, failure: Failure, error: Error) -> Error {
        self.member.declare(failure);
        self.finished = true;
        self.state.failed = Some(error.clone());
        error
    }

    /// What a failure that another rank declared means here.
    fn heard(&mut self, failure: Failure, behind: &[usize]) -> Error {
        let error = match failure {
            // The same absent ranks keep this rank waiting: say so, rather than blame the first
            // whose deadline passed.
            Failure::TimedOut { by } if !behind.is_empty() && !behind.contains(&by) => self.timeout(behind),
            other => other.error(self.member.rank),
        };
        self.fail(failure, error)
    }

    fn timeout(&self, behind: &[usize]) -> Error {
        let absent: Vec<String> = behind.iter().map(|rank| self.whereabouts(*rank)).collect();
        Error::Timeout {
            call: self.call.to_string(),
            seconds: self.started.elapsed().as_secs_f64(),
            absent: absent.join("; "),
        }
    }

    /// Where a rank that is behind was last seen.
    fn whereabouts(&self, rank: usize) -> String {
        let slot = self.member.region.slot(rank);
        let [even, odd]: [Announced; 2] = std::array::from_fn(|parity| slot.calls[parity].read());
        let last = if odd.seq() > even.seq() { odd } else { even };
        if slot.presence.load(Acquire) == ABSENT {
            format!("rank {rank} has not joined")
        } else if last == Announced::of(self.call) {
            format!("rank {rank} came, but stopped on the way")
        } else if last.seq() == 0 {
            format!("rank {rank} did not come; it has made no call yet")
        } else {
            format!("rank {rank} did not come; its last call was {}", last.describe())
        }
    }
}

impl<M: Memory> Drop for Session<'_, M> {
    /// A call that panics half-way must not leave its peers waiting.
    fn drop(&mut self) {
        if !self.finished {
            let by = self.member.rank;
            let error = Failure::Aborted { by }.error(by);
            self.fail(Failure::Aborted { by }, error);
        }
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
