//! What the server knows.

use crate::{
    Error,
    rendezvous::{
        frame::write_frame,
        wire::{Activity, Event, Member, Place, Stall},
    },
};
use std::{
    collections::{BTreeMap, HashMap},
    net::TcpStream,
    sync::Arc,
    time::Instant,
};

/// A rank's seat at the server.
pub struct Seat {
    pub member: Member,
    pub peer: String,
    pub stream: Arc<TcpStream>,
    /// Said goodbye, after these last calls by group.
    pub left: Option<HashMap<u64, u64>>,
    /// Its connection is closed.
    pub gone: bool,
}

/// A question to several ranks, and their answers.
#[derive(Default)]
pub struct Inquiry {
    pub id: u64,
    pub places: HashMap<usize, Place>,
    pub activities: HashMap<usize, Activity>,
}

impl Inquiry {
    pub fn answers(&self) -> usize {
        self.places.len() + self.activities.len()
    }
}

#[derive(Default)]
pub struct State {
    pub seats: Vec<Option<Seat>>,
    pub complete: bool,
    /// No more ranks are wanted: rank 0 gave up.
    pub closed: bool,
    pub values: BTreeMap<String, Vec<u8>>,
    /// Ranks that wait for a key: key, request, rank.
    pub waiting: Vec<(String, u64, usize)>,
    pub cause: Option<Error>,
    /// The open question.
    pub inquiry: Option<Inquiry>,
    /// Whether an inquiry, which may ask several questions, is in progress.
    pub inquiring: bool,
    pub inquiries: u64,
    pub last_inquiry: Option<(u64, u64, Instant)>,
    pub last_survey: Option<Instant>,
}

impl State {
    pub fn present(&self, rank: usize) -> bool {
        self.seats[rank].as_ref().is_some_and(|seat| seat.left.is_none() && !seat.gone)
    }

    pub fn left(&self, rank: usize) -> bool {
        self.seats.get(rank).and_then(Option::as_ref).is_some_and(|seat| seat.left.is_some())
    }

    /// Whether a rank has said goodbye without having made the call that another waits in.
    pub fn left_before(&self, rank: usize, stall: &Stall) -> bool {
        let seat = self.seats.get(rank).and_then(Option::as_ref);
        let Some(calls) = seat.and_then(|seat| seat.left.as_ref()) else { return false };
        stall.direct || calls.get(&stall.group).is_none_or(|last| *last < stall.call.seq)
    }

    pub fn tell(&self, rank: usize, event: &Event) {
        if let Some(seat) = self.seats[rank].as_ref().filter(|seat| !seat.gone) {
            // A failed write shows as a closed connection in its reader.
            let _ = write_frame(&seat.stream, event);
        }
    }

    /// Rank 0 last: once it knows, this process may end.
    pub fn tell_all(&self, event: &Event) {
        for rank in (0..self.seats.len()).rev() {
            self.tell(rank, event);
        }
    }

    /// The first error is the job's; all others follow from it.
    pub fn poison(&mut self, error: Error) {
        if self.cause.is_none() {
            self.cause = Some(error.clone());
            self.tell_all(&Event::Poison { error });
        }
    }
}
