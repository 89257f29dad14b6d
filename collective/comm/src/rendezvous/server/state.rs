//! State of the server.

use crate::{
    Error,
    rendezvous::{
        frame::write_frame,
        wire::{Event, PeerInfo, Place, Stall},
    },
};
use std::{
    collections::{BTreeMap, HashMap},
    net::TcpStream,
    sync::Arc,
    time::Instant,
};

/// A rank that has joined.
pub struct RankSlot {
    pub member: PeerInfo,
    pub peer: String,
    pub stream: Arc<TcpStream>,
    /// Set after a clean exit: numbers of the last calls by group.
    pub left: Option<HashMap<u64, u64>>,
    /// Its connection is closed.
    pub gone: bool,
}

/// A question to several ranks, and their answers.
#[derive(Default)]
pub struct Inquiry {
    pub id: u64,
    pub places: HashMap<usize, Place>,
}

#[derive(Default)]
pub struct ServerState {
    pub slots: Vec<Option<RankSlot>>,
    pub complete: bool,
    /// Rank 0 has given up; no more ranks may join.
    pub closed: bool,
    pub values: BTreeMap<String, Vec<u8>>,
    /// Waiting requests: key, request id, rank.
    pub waiting: Vec<(String, u64, usize)>,
    pub cause: Option<Error>,
    /// The question in progress.
    pub inquiry: Option<Inquiry>,
    /// Whether an inquiry, which may ask twice, is in progress.
    pub inquiring: bool,
    pub inquiries: u64,
    pub last_inquiry: Option<(u64, u64, Instant)>,
}

impl ServerState {
    pub fn present(&self, rank: usize) -> bool {
        self.slots[rank].as_ref().is_some_and(|slot| slot.left.is_none() && !slot.gone)
    }

    pub fn left(&self, rank: usize) -> bool {
        self.slots.get(rank).and_then(Option::as_ref).is_some_and(|slot| slot.left.is_some())
    }

    /// Whether a rank has exited without making the call that another rank waits in.
    pub fn left_before(&self, rank: usize, stall: &Stall) -> bool {
        let slot = self.slots.get(rank).and_then(Option::as_ref);
        let Some(calls) = slot.and_then(|slot| slot.left.as_ref()) else { return false };
        stall.message.is_some() || calls.get(&stall.group).is_none_or(|last| *last < stall.call.seq)
    }

    pub fn tell(&self, rank: usize, event: &Event) {
        if let Some(slot) = self.slots[rank].as_ref().filter(|slot| !slot.gone) {
            // A failed write closes the connection, which its reader finds.
            let _ = write_frame(&slot.stream, event);
        }
    }

    /// Rank 0 last, because its process may end once it is notified.
    pub fn tell_all(&self, event: &Event) {
        for rank in (0..self.slots.len()).rev() {
            self.tell(rank, event);
        }
    }

    /// Records the first error of the job and sends it to all ranks. Later errors are ignored.
    pub fn poison(&mut self, error: Error) {
        if self.cause.is_none() {
            self.cause = Some(error.clone());
            self.tell_all(&Event::Poison { error });
        }
    }
}
