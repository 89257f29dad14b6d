//! One call on one rank: arrival at gates, waiting, comparison and failure.

use super::{
    LocalRank, LocalState,
    failure::Failure,
    region::{ABSENT, GateId},
    wait::{Word, spin_until, this_core},
};
use crate::{
    Error, Result,
    sync::lock,
    transport::{
        header::Header,
        method::{MethodCall, mismatch},
    },
};
use std::{
    sync::{
        MutexGuard,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::{Duration, Instant},
};

/// Longest sleep of a waiting rank between checks for failures and its deadline.
const SLICE: Duration = Duration::from_millis(50);

/// One arrival at a gate, to be waited for with [`Session::wait`].
#[derive(Clone, Copy, Debug)]
#[must_use]
pub struct Ticket {
    gate: GateId,
    target: u32,
    step: u32,
}

/// A call in progress on this rank.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) member: &'a LocalRank,
    pub(super) state: MutexGuard<'a, LocalState>,
    pub(super) call: MethodCall<'a>,
    started: Instant,
    finished: bool,
}

impl<'a> Session<'a> {
    /// Begins a call.
    ///
    /// # Errors
    /// If the group has failed.
    pub fn open(member: &'a LocalRank, call: MethodCall<'a>) -> Result<Self> {
        let state = lock(&member.state);
        if let Some(first) = &state.failed {
            return Err(Error::Poisoned(Box::new(first.clone())));
        }
        let mut session = Session { member, state, call, started: Instant::now(), finished: false };
        match member.failure() {
            Some(failure) => Err(session.peer_failure(failure, &[])),
            None => Ok(session),
        }
    }

    /// Begins a collective and publishes it for comparison.
    ///
    /// # Errors
    /// If the group has failed.
    pub fn begin(member: &'a LocalRank, call: MethodCall<'a>) -> Result<Self> {
        let mut session = Self::open(member, call)?;
        session.state.calls += 1;
        member.region.slot(member.rank).calls[session.parity()].publish(Header::new(call));
        Ok(session)
    }

    /// 0 and 1 alternately, from call to call; equal on all ranks.
    pub fn parity(&self) -> usize {
        self.state.calls % 2
    }

    pub fn arrive(&mut self, gate: GateId) -> Ticket {
        let member = self.member;
        let arrivals = &mut self.state.arrivals[gate.index()];
        *arrivals = arrivals.wrapping_add(1);
        let target = arrivals.wrapping_mul(member.region.world() as u32);
        self.state.steps = self.state.steps.wrapping_add(1);
        let word = member.region.gate(gate);
        member.region.slot(member.rank).core.store(this_core(), Relaxed);
        let opened = word.increment() == target;
        // After the arrival, so that a rank whose steps are up to date has arrived.
        member.region.slot(member.rank).steps.store(self.state.steps, Release);
        if opened {
            word.wake();
        }
        Ticket { gate, target, step: self.state.steps }
    }

    /// Waits until every rank has arrived at the ticket's gate.
    ///
    /// # Errors
    /// If a rank has failed or is lost, or the deadline has passed.
    pub fn wait(&mut self, ticket: Ticket) -> Result<()> {
        let region = &self.member.region;
        let late =
            |rank: &usize| region.slot(*rank).steps.load(Acquire).wrapping_sub(ticket.step) > u32::MAX / 2;
        self.wait_for(region.gate(ticket.gate), ticket.target, &late)
    }

    /// Waits until `word` has reached `target`. `late` tells which ranks are waited for.
    pub(super) fn wait_for(&mut self, word: &Word, target: u32, late: &dyn Fn(&usize) -> bool) -> Result<()> {
        let member = self.member;
        let ranks = || 0..member.region.world();
        let crowded = || {
            let core = this_core();
            ranks().any(|rank| member.region.slot(rank).core.load(Relaxed) == core && late(&rank))
        };
        if spin_until(|| word.reached(target), crowded) {
            return Ok(());
        }
        loop {
            let failure = member.failure();
            let behind: Vec<usize> = ranks().filter(late).collect();
            let left = behind.iter().copied().find(|rank| member.has_left(*rank));
            // The last rank may have arrived, and left, during the checks.
            if word.reached(target) {
                return Ok(());
            }
            if let Some(failure) = failure {
                return Err(self.peer_failure(failure, &behind));
            }
            if let Some(rank) = left {
                let reason = "it closed its communicator".into();
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

    /// Waits for all ranks at the entry gate and checks that their calls are equal.
    ///
    /// # Errors
    /// Those of [`Session::wait`]; [`Error::Mismatch`].
    pub fn enter(&mut self) -> Result<()> {
        let ticket = self.arrive(GateId::Entry);
        self.wait(ticket)?;
        self.agree()
    }

    /// Checks, after the entry gate, that all ranks make the same call.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if they do not.
    pub fn agree(&mut self) -> Result<()> {
        let (region, parity) = (&self.member.region, self.parity());
        let announced = |rank: usize| region.slot(rank).calls[parity].read();
        let first = announced(0);
        let Some(other) = (1..region.world()).find(|rank| announced(*rank) != first) else {
            return Ok(());
        };
        let error = mismatch(first.side(0), announced(other).side(other));
        Err(self.fail(Failure::Mismatch { by: self.member.rank }, error))
    }

    /// Completes the call. Dropping the session without it fails the group.
    pub fn finish(mut self) {
        self.finished = true;
    }

    pub(super) fn fail(&mut self, failure: Failure, error: Error) -> Error {
        self.member.declare(failure);
        self.finished = true;
        self.state.failed = Some(error.clone());
        error
    }

    /// The error for a failure that another rank has recorded.
    pub(super) fn peer_failure(&mut self, failure: Failure, behind: &[usize]) -> Error {
        let error = match failure {
            // The same missing ranks keep this rank waiting: name them, and not the rank whose deadline
            // passed first.
            Failure::TimedOut { by } if !behind.is_empty() && !behind.contains(&by) => self.timeout(behind),
            other => other.error(self.member.rank),
        };
        self.fail(failure, error)
    }

    fn timeout(&self, behind: &[usize]) -> Error {
        let absent: Vec<String> = behind.iter().map(|rank| self.whereabouts(*rank)).collect();
        Error::timeout(self.call, self.started.elapsed(), absent.join("; "))
    }

    /// Describes the last known call of a rank that is behind.
    fn whereabouts(&self, rank: usize) -> String {
        let slot = self.member.region.slot(rank);
        let [even, odd] = [0, 1].map(|parity| slot.calls[parity].read());
        let last = if odd.seq > even.seq { odd } else { even };
        if slot.presence.load(Acquire) == ABSENT {
            format!("rank {rank} has not joined")
        } else if last == Header::new(self.call) {
            format!("rank {rank} joined the call, but did not finish it")
        } else if last.seq == 0 {
            format!("rank {rank} has not joined the call; it has made no call yet")
        } else {
            format!("rank {rank} has not joined the call; its last call was {}", last.side(rank).1)
        }
    }
}

impl Drop for Session<'_> {
    /// A call that panics must not leave its peers waiting.
    fn drop(&mut self) {
        if !self.finished {
            let by = self.member.rank;
            let error = Failure::Aborted { by }.error(by);
            self.fail(Failure::Aborted { by }, error);
        }
    }
}
