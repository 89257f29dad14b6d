//! How the server finds the first cause: it asks the ranks for their positions, and delays second-hand
//! reports.

use super::{Inquiry, Shared};
use crate::{
    Error,
    rendezvous::{
        PEER_LOSS_GRACE,
        diagnosis::{contradiction, timeout},
        finished,
        server::ServerState,
        wire::{Event, Stall},
    },
};
use std::{
    sync::{Arc, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// Time limit of the ranks' answers.
const INQUIRY: Duration = Duration::from_secs(1);
/// Minimum time between two inquiries about one call.
const INQUIRY_PAUSE: Duration = Duration::from_millis(400);

impl Shared {
    /// Starts an inquiry about a waiting call, unless one is in progress or recent.
    pub fn stalled(self: Arc<Self>, rank: usize, stall: Stall) {
        let state = self.lock();
        let asked = (stall.group, stall.call.seq);
        let recent = state
            .last_inquiry
            .is_some_and(|(group, seq, at)| (group, seq) == asked && at.elapsed() < INQUIRY_PAUSE);
        if state.cause.is_some() || (!stall.expired && (recent || state.inquiring)) {
            return;
        }
        drop(state);
        // Without a thread, the asking rank still has its own, less specific error.
        let _ = thread::Builder::new().name("ddp-inquiry".into()).spawn(move || self.inquire(rank, stall));
    }

    /// Records a rank's error as the first cause.
    ///
    /// A report that another rank is gone, which is still connected, waits for that rank's own report or for
    /// an inquiry.
    pub fn report(self: Arc<Self>, from: usize, error: Error) {
        let mut state = self.lock();
        let (rank, reason) = match error {
            Error::PeerLost { rank, reason } if rank != from => (rank, reason),
            other => return state.poison(other),
        };
        if state.left(rank) {
            return state.poison(Error::PeerLost { rank, reason: finished(&reason) });
        }
        drop(state);
        let shared = self.clone();
        let lost = Error::PeerLost { rank, reason };
        let late = lost.clone();
        let waiting = thread::Builder::new().name("ddp-peer-loss".into()).spawn(move || {
            thread::sleep(PEER_LOSS_GRACE);
            let mut state = shared.lock();
            while state.inquiring && state.cause.is_none() {
                state =
                    shared.answered.wait_timeout(state, INQUIRY).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.poison(lost);
        });
        if waiting.is_err() {
            self.lock().poison(late);
        }
    }

    /// Runs one inquiry at a time. The result of the previous one may make this one unnecessary.
    fn inquire(&self, asker: usize, stall: Stall) {
        let mut state = self.lock();
        let begun = Instant::now();
        while state.inquiring {
            state = self.answered.wait_timeout(state, INQUIRY).unwrap_or_else(PoisonError::into_inner).0;
            if state.cause.is_some() || begun.elapsed() > 2 * INQUIRY {
                return;
            }
        }
        state.inquiring = true;
        state = self.judge(state, asker, &stall);
        state.inquiring = false;
        self.answered.notify_all();
    }

    /// Asks the group's members for their position, then, if that is inconclusive, surveys all ranks.
    fn judge<'a>(
        &'a self,
        mut state: MutexGuard<'a, ServerState>,
        asker: usize,
        stall: &Stall,
    ) -> MutexGuard<'a, ServerState> {
        let group = stall.group;
        let seq = (!stall.direct).then_some(stall.call.seq);
        state.last_inquiry = Some((group, stall.call.seq, Instant::now()));
        let members: Vec<usize> = stall.members.iter().copied().filter(|&m| m < self.world).collect();
        let places;
        let ask = |inquiry| Event::Where { inquiry, group, seq };
        (state, Inquiry { places, .. }) = self.ask(state, &members, INQUIRY, ask);
        if let Some(error) = contradiction(asker, stall, |rank| state.left_before(rank, stall), &places) {
            state.poison(error);
            return state;
        }
        // A member that did not answer would delay the survey.
        if members.iter().all(|&member| !state.present(member) || places.contains_key(&member)) {
            state = self.survey(state, stall);
        }
        if stall.expired {
            state.poison(timeout(stall, &places));
        }
        state
    }

    /// Sends `question` to those of `ranks` that are present, and waits until they have answered,
    /// `limit` has passed or the job has failed.
    pub(super) fn ask<'a>(
        &'a self,
        mut state: MutexGuard<'a, ServerState>,
        ranks: &[usize],
        limit: Duration,
        question: impl Fn(u64) -> Event,
    ) -> (MutexGuard<'a, ServerState>, Inquiry) {
        let begun = Instant::now();
        state.inquiries += 1;
        let id = state.inquiries;
        state.inquiry = Some(Inquiry { id, ..Inquiry::default() });
        for &rank in ranks {
            state.tell(rank, &question(id));
        }
        loop {
            let answers = state.inquiry.as_ref().map_or(0, Inquiry::answers);
            let here = ranks.iter().filter(|&&rank| state.present(rank)).count();
            let left = limit.saturating_sub(begun.elapsed());
            if answers >= here || left.is_zero() || state.cause.is_some() {
                break;
            }
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let inquiry = state.inquiry.take().unwrap_or_default();
        (state, inquiry)
    }
}
