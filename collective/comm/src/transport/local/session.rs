//! One call on one rank: arrival at gates, waiting and comparison.

use super::{
    LocalRank, LocalState,
    os::this_core,
    region::GateId,
    wait::{Word, spin_until},
};
use crate::{
    Error, Result,
    error::names,
    sync::lock,
    transport::{
        header::{Header, mismatch},
        method::{Deadline, MethodCall},
    },
};
use std::{
    sync::{
        MutexGuard,
        atomic::Ordering::{Acquire, Relaxed, Release},
    },
    time::Duration,
};

/// Longest sleep of a waiting rank between checks for an abort, its deadline, and ranks that have left.
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
pub(super) struct Session<'a> {
    pub(super) member: &'a LocalRank,
    pub(super) state: MutexGuard<'a, LocalState>,
    deadline: Deadline<'a>,
}

impl<'a> Session<'a> {
    /// Begins a call. If it does not [`finish`](Session::finish), all later calls of this rank fail.
    ///
    /// # Errors
    /// [`Error::Aborted`] after an abort or a call that failed.
    pub fn open(member: &'a LocalRank, call: MethodCall<'a>) -> Result<Self> {
        let mut state = lock(&member.state);
        if state.unfinished || member.aborted.load(Acquire) {
            return Err(Error::Aborted);
        }
        state.unfinished = true;
        Ok(Session { member, state, deadline: Deadline::new(call, &member.aborted) })
    }

    /// Begins a collective and publishes it for comparison.
    ///
    /// # Errors
    /// Those of [`Session::open`].
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
    /// If a rank that is waited for has left, this rank was aborted, or the deadline has passed.
    pub fn wait(&self, ticket: Ticket) -> Result<()> {
        let region = &self.member.region;
        let late =
            |rank: &usize| region.slot(*rank).steps.load(Acquire).wrapping_sub(ticket.step) > u32::MAX / 2;
        self.wait_for(region.gate(ticket.gate), ticket.target, &late)
    }

    /// Waits until `word` has reached `target`. `late` tells which ranks are waited for.
    pub(super) fn wait_for(&self, word: &Word, target: u32, late: &dyn Fn(&usize) -> bool) -> Result<()> {
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
            let behind: Vec<usize> = ranks().filter(late).collect();
            let left = behind.iter().copied().find(|rank| member.has_left(*rank));
            // The last rank may have arrived, and left, during the checks.
            if word.reached(target) {
                return Ok(());
            }
            if let Some(rank) = left {
                return Err(Error::PeerLost { rank, reason: "it closed its communicator".into() });
            }
            self.deadline.check(|| format!("waiting for {}", names(&behind)))?;
            word.sleep(target, SLICE);
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
    pub fn agree(&self) -> Result<()> {
        let (region, parity) = (&self.member.region, self.parity());
        let announced = |rank: usize| region.slot(rank).calls[parity].read();
        let first = announced(0);
        match (1..region.world()).find(|rank| announced(*rank) != first) {
            Some(other) => Err(mismatch((0, &first), (other, &announced(other)))),
            None => Ok(()),
        }
    }

    /// Completes the call.
    pub fn finish(mut self) {
        self.state.unfinished = false;
    }
}
