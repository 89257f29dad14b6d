//! The server in rank 0's process: key-value store, and state of which ranks have joined, left or failed.
//!
//! It runs one thread per connection. A connection that has not authenticated and joined within two seconds
//! is closed and counted. The first error that reaches the server is the job's first cause and is sent to
//! every rank, including those that join later.

mod admission;
mod inquiry;
mod state;

use super::{
    Secret,
    frame::{FrameReader, Next},
    host,
    listener::{self, Unproven},
    wire::{Event, PeerInfo, Request},
};
use crate::{Error, Result};
use state::{Inquiry, RankSlot, ServerState};
use std::{
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Time in which a rank must take a message, or its connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

struct Shared {
    world: usize,
    /// Its address, for messages.
    address: String,
    secret: Secret,
    /// The job's id, if it has one.
    job: Option<String>,
    state: Mutex<ServerState>,
    answered: Condvar,
    refused: AtomicUsize,
}

/// Rank 0's handle to its server, which runs until all ranks have disconnected.
pub(crate) struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// Serves `world` ranks of the job `job` on `listener`.
    ///
    /// # Errors
    /// [`Error::Io`] if the listener cannot be used or the thread cannot be started.
    pub fn start(listener: TcpListener, world: usize, secret: Secret, job: Option<String>) -> Result<Self> {
        let failed = |e| Error::io("start the rendezvous server", &e);
        let address = listener.local_addr().map_err(failed)?;
        let shared = Shared::new(world, address.to_string(), secret, job);
        let (here, serving) = (shared.clone(), shared.clone());
        let serve = move |stream, unproven| serving.clone().serve(stream, unproven);
        listener::listen(listener, "ddp-server", move || !here.deserted(), serve).map_err(failed)?;
        Ok(Server { shared })
    }

    /// The ranks that have not joined, for messages.
    pub fn absent(&self) -> String {
        let state = self.shared.lock();
        self.shared.absent(&state)
    }

    /// Stops listening once the connected ranks have disconnected, because rank 0 could not start.
    pub fn close(&self) {
        self.shared.lock().closed = true;
    }
}

/// Serves the ranks of one process. Returns the ranks and their connections.
///
/// # Errors
/// If a connection or thread cannot be created.
pub(super) fn in_process(world: usize) -> io::Result<(Vec<PeerInfo>, Vec<TcpStream>)> {
    let shared = Shared::new(world, "this process".into(), Secret::random(), None);
    let member = PeerInfo {
        data: SocketAddr::from(([0; 4], 0)),
        host: host(),
        machine: String::new(),
        pid: process::id(),
        transport: String::new(),
    };
    let mut streams = Vec::new();
    for rank in 0..world {
        let (here, there) = UnixStream::pair()?;
        let [stream, other] = [here, there].map(|end| TcpStream::from(OwnedFd::from(end)));
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let stream = Arc::new(stream);
        let (followed, reader) = (shared.clone(), FrameReader::new(stream.clone()));
        let (member, peer) = (member.clone(), "a thread".into());
        shared.lock().slots[rank] = Some(RankSlot { member, peer, stream, left: None, gone: false });
        thread::Builder::new().name("ddp-server".into()).spawn(move || followed.follow(rank, reader))?;
        streams.push(other);
    }
    shared.lock().complete = true;
    Ok((vec![member; world], streams))
}

impl Shared {
    fn new(world: usize, address: String, secret: Secret, job: Option<String>) -> Arc<Self> {
        let state = ServerState { slots: (0..world).map(|_| None).collect(), ..ServerState::default() };
        let (state, answered, refused) = (Mutex::new(state), Condvar::new(), AtomicUsize::new(0));
        Arc::new(Shared { world, address, secret, job, state, answered, refused })
    }

    fn lock(&self) -> MutexGuard<'_, ServerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether no rank is connected and none may join.
    fn deserted(&self) -> bool {
        let state = self.lock();
        (state.complete || state.closed) && state.slots.iter().flatten().all(|slot| slot.gone)
    }

    /// Serves one connection until it ends.
    fn serve(self: Arc<Self>, stream: TcpStream, unproven: Unproven) {
        let joined = self.admit(stream);
        drop(unproven);
        if let Some((rank, reader)) = joined {
            self.follow(rank, reader);
        }
    }

    /// Handles the messages of a rank that has joined, until its connection ends.
    fn follow(self: Arc<Self>, rank: usize, mut reader: FrameReader) {
        let reason = loop {
            match reader.next(None) {
                Ok(Next::Frame(request)) => self.clone().handle(rank, request),
                Ok(Next::Idle) => {}
                Ok(Next::Closed) => break "its process ended or closed the connection".to_string(),
                Err(error) => break format!("its connection broke ({error})"),
            }
        };
        let mut state = self.lock();
        let Some(slot) = &mut state.slots[rank] else { return };
        slot.gone = true;
        if slot.left.is_none() {
            state.poison(Error::PeerLost { rank, reason });
        }
        self.answered.notify_all();
    }

    fn handle(self: Arc<Self>, rank: usize, request: Request) {
        let mut state = self.lock();
        match request {
            // Only valid as first messages.
            Request::Hello(_) | Request::Join { .. } => {}
            Request::Late { seconds } => {
                if !state.complete {
                    let absent = self.absent(&state);
                    state.poison(Error::Rendezvous { address: self.address.clone(), seconds, absent });
                }
            }
            Request::Set { key, value } => {
                let (served, waiting) =
                    std::mem::take(&mut state.waiting).into_iter().partition(|(wanted, ..)| *wanted == key);
                state.waiting = waiting;
                let served: Vec<(String, u64, usize)> = served;
                for (_, id, waiter) in served {
                    state.tell(waiter, &Event::Value { id, value: Some(value.clone()) });
                }
                state.values.insert(key, value);
            }
            Request::Get { id, key, wait } => match state.values.get(&key).cloned() {
                None if wait => state.waiting.push((key, id, rank)),
                value => state.tell(rank, &Event::Value { id, value }),
            },
            Request::Delete { key } => {
                state.values.remove(&key);
            }
            Request::Report { error } => {
                drop(state);
                self.report(rank, error);
            }
            Request::Stall(stall) => {
                drop(state);
                self.stalled(rank, stall);
            }
            Request::Here { inquiry: id, place } => {
                if let Some(inquiry) = state.inquiry.as_mut().filter(|inquiry| inquiry.id == id) {
                    inquiry.places.insert(rank, place);
                    self.answered.notify_all();
                }
            }
            Request::Goodbye { calls } => {
                if let Some(slot) = &mut state.slots[rank] {
                    slot.left = Some(calls.into_iter().collect());
                }
                state.tell_all(&Event::Left { rank });
            }
        }
    }

    /// The ranks that have not joined, and the number of rejected connections.
    fn absent(&self, state: &ServerState) -> String {
        let absent = state.slots.iter().enumerate().filter(|(_, slot)| slot.is_none());
        let absent: Vec<_> = absent.map(|(rank, _)| rank.to_string()).collect();
        let came = self.world - absent.len();
        let s = if absent.len() == 1 { "" } else { "s" };
        let mut text = format!("rank{s} {} ({came} of {} came)", absent.join(", "), self.world);
        match self.refused.load(Ordering::Relaxed) {
            0 => {}
            n => {
                text += &format!(
                    "; {n} connections were refused because they did not authenticate with the job's secret"
                )
            }
        }
        text
    }
}
