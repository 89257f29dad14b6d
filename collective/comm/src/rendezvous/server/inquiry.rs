//! How the server finds the first cause: it asks the ranks for their positions, and delays second-hand
//! reports.

use super::{Inquiry, Shared};
use crate::{
    Error,
    communicator::Fingerprint,
    rendezvous::{
        PEER_LOSS_GRACE,
        diagnosis::{contradiction, timeout},
        finished,
        server::ServerState,
        wire::{Event, Place, Stall},
    },
};
use std::{
    collections::{BTreeSet, HashMap},
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
        state = self.diagnose(state, asker, &stall);
        state.inquiring = false;
        self.answered.notify_all();
    }

    /// Asks the call's ranks for their positions, and again if these contradict the call.
    fn diagnose<'a>(
        &'a self,
        mut state: MutexGuard<'a, ServerState>,
        asker: usize,
        stall: &Stall,
    ) -> MutexGuard<'a, ServerState> {
        state.last_inquiry = Some((stall.group, stall.call.seq, Instant::now()));
        let (mut places, mut found) = (HashMap::new(), None);
        for _ in 0..2 {
            (state, places) = self.ask(state, asker, stall);
            let again = contradiction(asker, stall, |rank| state.left_before(rank, stall), &places);
            match again {
                Some(error) if found.as_ref() == Some(&error) => state.poison(error),
                Some(error) => found = Some(error),
                None => break,
            }
        }
        if stall.expired {
            state.poison(timeout(stall, &places));
        }
        state
    }

    /// The positions of the call's ranks, as far as they answer in time and the job does not fail.
    fn ask<'a>(
        &'a self,
        mut state: MutexGuard<'a, ServerState>,
        asker: usize,
        stall: &Stall,
    ) -> (MutexGuard<'a, ServerState>, HashMap<usize, Place>) {
        let ranks: BTreeSet<usize> = stall.members.iter().copied().chain([asker]).collect();
        let begun = Instant::now();
        state.inquiries += 1;
        let id = state.inquiries;
        state.inquiry = Some(Inquiry { id, ..Inquiry::default() });
        let Stall { group, call: Fingerprint { seq, .. }, message, .. } = *stall;
        for rank in ranks.range(..self.world) {
            state.tell(*rank, &Event::Where { inquiry: id, group, seq, message });
        }
        loop {
            let answers = state.inquiry.as_ref().map_or(0, |inquiry| inquiry.places.len());
            let here = ranks.range(..self.world).filter(|rank| state.present(**rank)).count();
            let left = INQUIRY.saturating_sub(begun.elapsed());
            if answers >= here || left.is_zero() || state.cause.is_some() {
                break;
            }
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let places = state.inquiry.take().unwrap_or_default().places;
        (state, places)
    }
}
