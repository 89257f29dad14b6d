//! State of the server's inquiries: which call is asked about, the ranks' answers, and what waits for the end.

use crate::{
    Error,
    rendezvous::wire::{Place, Stall},
};
use std::{
    collections::{BTreeSet, HashMap},
    time::Instant,
};

/// What identifies a call: group, number, and sender and receiver of a message.
pub type CallKey = (u64, u64, Option<(usize, usize)>);

pub fn key(stall: &Stall) -> CallKey {
    (stall.group, stall.call.seq, stall.message)
}

/// A question to several ranks about a call that a rank waits in, and their answers.
pub struct Inquiry {
    pub id: u64,
    pub asker: usize,
    pub stall: Stall,
    pub places: HashMap<usize, Place>,
    /// The ranks that have not answered.
    pub unanswered: BTreeSet<usize>,
    pub deadline: Instant,
    /// What the answers to the same question before this one contradict.
    pub found: Option<Error>,
}

/// The inquiry in progress, and what waits for its end.
#[derive(Default)]
pub struct Inquiries {
    pub count: u64,
    pub current: Option<Inquiry>,
    /// A rank and the call that it waits in, asked about after this inquiry.
    pub next: Option<(usize, Stall)>,
    /// The call of the last inquiry, and when it began.
    pub last: Option<(CallKey, Instant)>,
    /// A report that a connected rank is gone, and the time until which its own report is awaited.
    pub peer_loss: Option<(Instant, Error)>,
}

impl Inquiries {
    /// Records a rank's answer.
    pub fn answer(&mut self, inquiry: u64, rank: usize, place: Place) {
        if let Some(current) = self.current.as_mut().filter(|current| current.id == inquiry) {
            current.unanswered.remove(&rank);
            current.places.insert(rank, place);
        }
    }

    /// Stops waiting for the answer of a rank that has left or is lost.
    pub fn forget(&mut self, rank: usize) {
        if let Some(current) = &mut self.current {
            current.unanswered.remove(&rank);
        }
    }
}
