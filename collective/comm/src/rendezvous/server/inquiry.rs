//! How the server finds the first cause: it asks the ranks for their positions, and delays second-hand reports.

use super::state::{Inquiries, Inquiry, ServerState};
use crate::{
    Error,
    communicator::Call,
    rendezvous::{
        PEER_LOSS_GRACE,
        diagnosis::{contradiction, timeout},
        wire::{Event, Stall},
    },
};
use std::{
    collections::{BTreeSet, HashMap},
    mem,
    time::{Duration, Instant},
};

/// Time limit of the ranks' answers.
const INQUIRY: Duration = Duration::from_secs(1);
/// Minimum time between two inquiries about one call.
const INQUIRY_PAUSE: Duration = Duration::from_millis(400);

impl ServerState {
    /// Starts an inquiry about a waiting call, after the one in progress if that is about another call.
    ///
    /// Nothing is done if an inquiry about the call is in progress or recent, unless the deadline has passed.
    pub fn stalled(&mut self, rank: usize, mut stall: Stall) {
        if stall.members.is_empty() {
            stall.members = (0..self.slots.len()).collect();
        }
        let Inquiries { current, next, last, .. } = &mut self.inquiries;
        let recent = last.is_some_and(|(call, at)| call == stall.key() && at.elapsed() < INQUIRY_PAUSE);
        let asked = current.as_ref().is_some_and(|inquiry| inquiry.stall.key() == stall.key());
        if self.cause.is_some() || (!stall.expired && (recent || asked)) {
            return;
        }
        if current.is_none() {
            *last = Some((stall.key(), Instant::now()));
            self.ask(rank, stall, None);
        } else if next.as_ref().is_none_or(|(_, other)| stall.expired && !other.expired) {
            *next = Some((rank, stall));
        }
    }

    /// Records a rank's error as the first cause.
    ///
    /// A report that another rank is gone, which is still connected, waits for that rank's own report or for
    /// an inquiry.
    pub fn report(&mut self, from: usize, error: Error) {
        match error {
            Error::PeerLost { rank, reason } if rank != from => {
                if self.left(rank) {
                    let reason = format!("it had finished or destroyed its group ({reason})");
                    self.poison(Error::PeerLost { rank, reason });
                } else {
                    let due = Instant::now() + PEER_LOSS_GRACE;
                    self.inquiries.peer_loss.get_or_insert((due, Error::PeerLost { rank, reason }));
                }
            }
            // Every rank may have a device of this name.
            Error::Device { .. } if self.cause.is_none() => {
                let reason = error.to_string();
                self.tell([from], &Event::Poison { error });
                self.poison(Error::Remote { rank: from, reason });
            }
            other => self.poison(other),
        }
    }

    /// Ends the inquiry in progress if all have answered or its deadline has passed, and starts the next one.
    pub fn advance_inquiry(&mut self) {
        if self.cause.is_some() {
            // The job's first cause is known.
            self.inquiries = Inquiries { count: self.inquiries.count, ..Inquiries::default() };
            return;
        }
        let now = Instant::now();
        let ended = |inquiry: &mut Inquiry| inquiry.unanswered.is_empty() || now >= inquiry.deadline;
        if let Some(inquiry) = self.inquiries.current.take_if(ended) {
            self.diagnose(inquiry);
        }
        if self.inquiries.current.is_some() {
            return;
        }
        if let Some((rank, stall)) = self.inquiries.next.take() {
            self.stalled(rank, stall);
        } else if let Some((_, error)) = self.inquiries.peer_loss.take_if(|(due, _)| now >= *due) {
            self.poison(error);
        }
    }

    /// Asks the call's ranks for their positions.
    fn ask(&mut self, asker: usize, stall: Stall, found: Option<Error>) {
        self.inquiries.count += 1;
        let id = self.inquiries.count;
        let ranks = stall.members.iter().copied().chain([asker]);
        let unanswered: BTreeSet<usize> = ranks.filter(|rank| self.present(*rank)).collect();
        let Stall { group, call: Call { seq, .. }, message, .. } = stall;
        self.tell(unanswered.iter().copied(), &Event::Where { inquiry: id, group, seq, message });
        let (places, deadline) = (HashMap::new(), Instant::now() + INQUIRY);
        self.inquiries.current = Some(Inquiry { id, asker, stall, places, unanswered, deadline, found });
    }

    /// Fails the job if the answers contradict the call twice, or its deadline has passed. Asks again after the
    /// first contradiction.
    fn diagnose(&mut self, mut inquiry: Inquiry) {
        let Inquiry { asker, stall, places, .. } = &inquiry;
        let again = contradiction(*asker, stall, |rank| self.left_before(rank, stall), places);
        match (again, mem::take(&mut inquiry.found)) {
            (Some(error), None) => return self.ask(inquiry.asker, inquiry.stall, Some(error)),
            (Some(error), Some(found)) if error == found => self.poison(error),
            _ => {}
        }
        if inquiry.stall.expired {
            self.poison(timeout(&inquiry.stall, &inquiry.places));
        }
    }
}
