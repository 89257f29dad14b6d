//! State of the server, and how requests of ranks change it.

use crate::{
    Error,
    error::names,
    rendezvous::{
        frame::encode,
        wire::{CallKey, Event, PeerInfo, Place, Request, Stall},
    },
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Instant,
};

/// A rank that has joined.
pub struct RankSlot {
    /// Description of its process.
    pub peer: String,
    /// Token of its connection; `None` if that is closed.
    pub connection: Option<usize>,
    /// Set after a clean exit: numbers of the last calls by group.
    pub left: Option<HashMap<u64, u64>>,
}

/// A frame for a connection.
pub struct Outgoing {
    pub token: usize,
    pub frame: Arc<[u8]>,
    /// Sent when all other output is sent.
    pub last: bool,
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

/// The state, shared by the server's thread and its handle.
#[derive(Default)]
pub struct ServerState {
    /// The server's address, for messages.
    pub address: String,
    /// The job's id, if it has one.
    pub job: Option<String>,
    /// By rank.
    pub slots: Vec<Option<RankSlot>>,
    /// Addresses of the ranks that have joined, until all have.
    pub joined: BTreeMap<usize, PeerInfo>,
    pub complete: bool,
    /// Rank 0 has given up; no more ranks may join.
    pub closed: bool,
    /// Number of connections that did not authenticate.
    pub refused: usize,
    values: BTreeMap<String, Vec<u8>>,
    /// Waiting requests by key: request id and rank.
    waiting: HashMap<String, Vec<(u64, usize)>>,
    pub cause: Option<Error>,
    pub inquiries: Inquiries,
    /// Messages to be sent.
    pub outbox: Vec<Outgoing>,
}

impl ServerState {
    pub fn new(world: usize, address: String, job: Option<String>) -> Self {
        ServerState { address, job, slots: (0..world).map(|_| None).collect(), ..Self::default() }
    }

    /// Adds a rank of this process.
    pub fn add_thread(&mut self, rank: usize, connection: usize) {
        self.slots[rank] =
            Some(RankSlot { peer: "a thread".into(), connection: Some(connection), left: None });
        self.complete = self.slots.iter().all(Option::is_some);
    }

    fn slot(&self, rank: usize) -> Option<&RankSlot> {
        self.slots.get(rank).and_then(Option::as_ref)
    }

    /// Token of a rank's connection.
    pub fn connection(&self, rank: usize) -> Option<usize> {
        self.slot(rank)?.connection
    }

    /// Whether no rank is connected and none may join.
    pub fn is_deserted(&self) -> bool {
        (self.complete || self.closed) && self.slots.iter().flatten().all(|slot| slot.connection.is_none())
    }

    pub fn present(&self, rank: usize) -> bool {
        self.slot(rank).is_some_and(|slot| slot.left.is_none() && slot.connection.is_some())
    }

    pub fn left(&self, rank: usize) -> bool {
        self.slot(rank).is_some_and(|slot| slot.left.is_some())
    }

    /// Whether a rank has exited without making the call that another rank waits in.
    pub fn left_before(&self, rank: usize, stall: &Stall) -> bool {
        let Some(calls) = self.slot(rank).and_then(|slot| slot.left.as_ref()) else { return false };
        stall.message.is_some() || calls.get(&stall.group).is_none_or(|last| *last < stall.call.seq)
    }

    /// Sends an event, which is encoded once, to those of `ranks` that are connected.
    pub fn tell(&mut self, ranks: impl IntoIterator<Item = usize>, event: &Event) {
        // A value that is too large for a frame is rejected by the rank that sets it.
        let Ok(frame) = encode(event).map(Arc::<[u8]>::from) else { return };
        for rank in ranks {
            if let Some(token) = self.connection(rank) {
                self.outbox.push(Outgoing { token, frame: frame.clone(), last: false });
            }
        }
    }

    /// Sends an event to all ranks; to rank 0 last, because its process may end once it is notified.
    pub fn tell_all(&mut self, event: &Event) {
        let sent = self.outbox.len();
        self.tell((0..self.slots.len()).rev(), event);
        if let (Some(_), Some(outgoing)) = (self.connection(0), self.outbox[sent..].last_mut()) {
            outgoing.last = true;
        }
    }

    /// Records the first error of the job and sends it to all ranks. Later errors are ignored.
    pub fn poison(&mut self, error: Error) {
        if self.cause.is_none() {
            self.cause = Some(error.clone());
            self.tell_all(&Event::Poison { error });
        }
    }

    /// Handles a request of a rank that has joined.
    pub fn handle(&mut self, rank: usize, request: Request) {
        match request {
            // Only valid as first messages.
            Request::Hello(_) | Request::Join { .. } => {}
            Request::Late { seconds } => {
                if !self.complete {
                    let (address, absent) = (self.address.clone(), self.absent());
                    self.poison(Error::Rendezvous { address, seconds, absent });
                }
            }
            Request::Set { key, value } => {
                for (id, waiter) in self.waiting.remove(&key).unwrap_or_default() {
                    self.tell([waiter], &Event::Value { id, value: Some(value.clone()) });
                }
                self.values.insert(key, value);
            }
            Request::Get { id, key, wait } => match self.values.get(&key).cloned() {
                None if wait => self.waiting.entry(key).or_default().push((id, rank)),
                value => self.tell([rank], &Event::Value { id, value }),
            },
            Request::Delete { key } => {
                self.values.remove(&key);
            }
            Request::Report { error } => self.report(rank, error),
            Request::Stall(stall) => self.stalled(rank, stall),
            Request::Here { inquiry, place } => self.inquiries.answer(inquiry, rank, place),
            Request::Goodbye { calls } => {
                if let Some(slot) = &mut self.slots[rank] {
                    slot.left = Some(calls.into_iter().collect());
                }
                self.inquiries.forget(rank);
                let event = Event::Left { rank };
                // The server ends with rank 0. Of other ranks, only the server needs to know.
                if rank == 0 { self.tell_all(&event) } else { self.tell([rank], &event) }
            }
        }
    }

    /// Records that a rank's connection has ended.
    pub fn disconnected(&mut self, rank: usize, reason: String) {
        self.inquiries.forget(rank);
        let Some(slot) = &mut self.slots[rank] else { return };
        slot.connection = None;
        if slot.left.is_none() {
            self.poison(Error::PeerLost { rank, reason });
        }
    }

    /// The ranks that have not joined, and the number of rejected connections.
    pub fn absent(&self) -> String {
        let world = self.slots.len();
        let absent: Vec<usize> = (0..world).filter(|rank| self.slots[*rank].is_none()).collect();
        let mut text = format!("{} ({} of {world} came)", names(&absent), world - absent.len());
        if self.refused > 0 {
            text += &format!(
                "; {} connections were refused because they did not authenticate with the job's secret",
                self.refused
            );
        }
        text
    }
}
