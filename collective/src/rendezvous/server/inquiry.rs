//! How the server finds the cause: it asks the ranks where they are, and waits with what is only
//! hearsay.

use super::{Inquiry, Shared};
use crate::{
    Error,
    rendezvous::{
        HEARSAY, finished,
        verdict::verdict,
        wire::{Event, Stall},
    },
};
use std::{
    collections::HashMap,
    sync::{Arc, PoisonError},
    thread,
    time::{Duration, Instant},
};

/// How long the ranks have to answer where they are.
const INQUIRY: Duration = Duration::from_secs(1);
/// Two inquiries about one call are at least this far apart.
const INQUIRY_PAUSE: Duration = Duration::from_millis(400);

impl Shared {
    /// A rank waits for long: starts an inquiry, unless there is one or was one just now.
    pub fn stalled(self: Arc<Self>, rank: usize, stall: Stall) {
        let state = self.lock();
        let asked = (stall.group, stall.call.seq);
        let recent = state
            .last_inquiry
            .is_some_and(|(group, seq, at)| (group, seq) == asked && at.elapsed() < INQUIRY_PAUSE);
        if state.cause.is_some() || (!stall.expired && (recent || state.inquiry.is_some())) {
            return;
        }
        drop(state);
        // Without a thread the asking rank still has its own, shorter answer.
        let _ = thread::Builder::new().name("ddp-inquiry".into()).spawn(move || self.inquire(rank, stall));
    }

    /// A rank's error becomes the first cause, unless it only says that another rank is gone, which
    /// is still here: then the cause is that one's own, or the deadline's, and on its way.
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
        let waiting = thread::Builder::new().name("ddp-hearsay".into()).spawn(move || {
            thread::sleep(HEARSAY);
            let mut state = shared.lock();
            while state.inquiry.is_some() && state.cause.is_none() {
                state =
                    shared.answered.wait_timeout(state, INQUIRY).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.poison(lost);
        });
        if waiting.is_err() {
            self.lock().poison(late);
        }
    }

    /// Asks every member where it is, and judges.
    fn inquire(&self, asker: usize, stall: Stall) {
        let mut state = self.lock();
        let begun = Instant::now();
        // One at a time; a verdict of the one before may make this one needless.
        while state.inquiry.is_some() {
            state = self.answered.wait_timeout(state, INQUIRY).unwrap_or_else(PoisonError::into_inner).0;
            if state.cause.is_some() || begun.elapsed() > 2 * INQUIRY {
                return;
            }
        }
        state.inquiries += 1;
        let (id, group) = (state.inquiries, stall.group);
        let seq = (!stall.direct).then_some(stall.call.seq);
        state.inquiry = Some(Inquiry { id, answers: HashMap::new() });
        state.last_inquiry = Some((group, stall.call.seq, begun));
        let members: Vec<usize> = stall.members.iter().copied().filter(|&m| m < self.world).collect();
        for &member in &members {
            state.tell(member, &Event::Where { inquiry: id, group, seq });
        }
        loop {
            let answers = state.inquiry.as_ref().map_or(0, |inquiry| inquiry.answers.len());
            let here = members.iter().filter(|&&m| state.present(m)).count();
            let left = INQUIRY.saturating_sub(begun.elapsed());
            if answers >= here || left.is_zero() || state.cause.is_some() {
                break;
            }
            state = self.answered.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        let answers = state.inquiry.take().map(|inquiry| inquiry.answers).unwrap_or_default();
        self.answered.notify_all();
        if let Some(error) = verdict(asker, &stall, |rank| state.left_before(rank, &stall), &answers) {
            state.poison(error);
        }
    }
}
