//! The server in rank 0's process: key-value store, and the arbiter of who has come, left or
//! failed.
//!
//! A thread a connection. A connection that has not proved the secret and joined within two
//! seconds is closed and counted; nothing else of it matters. The first error that reaches the
//! server is the job's first cause; it goes to every rank, also to those that come later.

mod admission;
mod inquiry;
mod state;
mod survey;

use super::{
    Secret,
    frame::Next,
    wire::{Event, Request},
};
use crate::{Error, Result};
use state::{Inquiry, Seat, State};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

/// Most connections that may be proving themselves at one time.
const MAX_UNPROVEN: usize = 1024;

struct Shared {
    world: usize,
    address: SocketAddr,
    secret: Secret,
    /// The job's id, if it has one.
    job: Option<String>,
    state: Mutex<State>,
    answered: Condvar,
    unproven: AtomicUsize,
    refused: AtomicUsize,
}

/// Handle of rank 0 on its server. The server itself lives until all ranks have gone.
pub(crate) struct Server {
    shared: Arc<Shared>,
}

impl Server {
    /// Serves a world of `world` ranks of the job `job` on `listener`.
    pub fn start(listener: TcpListener, world: usize, secret: Secret, job: Option<String>) -> Result<Self> {
        let failed = |e| Error::io("start the rendezvous server", &e);
        let address = listener.local_addr().map_err(failed)?;
        super::tune_listener(&listener).map_err(failed)?;
        let state = State { seats: (0..world).map(|_| None).collect(), ..State::default() };
        let shared = Arc::new(Shared {
            world,
            address,
            secret,
            job,
            state: Mutex::new(state),
            answered: Condvar::new(),
            unproven: AtomicUsize::new(0),
            refused: AtomicUsize::new(0),
        });
        let accepting = shared.clone();
        thread::Builder::new()
            .name("ddp-server".into())
            .spawn(move || accepting.accept(listener))
            .map_err(failed)?;
        Ok(Server { shared })
    }

    /// The ranks that have not joined, in words.
    pub fn absent(&self) -> String {
        let state = self.shared.lock();
        self.shared.absent(&state)
    }

    /// Stops listening once those that are here have gone: rank 0 could not start.
    pub fn close(&self) {
        self.shared.lock().closed = true;
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn accept(self: Arc<Self>, listener: TcpListener) {
        while !self.deserted() {
            let Some(stream) = super::accept(&listener) else { continue };
            if self.unproven.fetch_add(1, Ordering::Relaxed) >= MAX_UNPROVEN {
                self.unproven.fetch_sub(1, Ordering::Relaxed);
                continue;
            }
            let shared = self.clone();
            let serving =
                thread::Builder::new().name("ddp-server".into()).spawn(move || shared.serve(stream));
            if serving.is_err() {
                self.unproven.fetch_sub(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether nobody is left to serve and nobody may come.
    fn deserted(&self) -> bool {
        let state = self.lock();
        (state.complete || state.closed) && state.seats.iter().flatten().all(|seat| seat.gone)
    }

    /// Serves one connection until it ends.
    fn serve(self: Arc<Self>, stream: TcpStream) {
        let joined = self.admit(stream);
        self.unproven.fetch_sub(1, Ordering::Relaxed);
        let Some((rank, mut reader)) = joined else { return };
        let reason = loop {
            match reader.next(None) {
                Ok(Next::Frame(request)) => self.clone().handle(rank, request),
                Ok(Next::Idle) => {}
                Ok(Next::Closed) => break "its process ended or closed the connection".to_string(),
                Err(error) => break format!("its connection broke ({error})"),
            }
        };
        let mut state = self.lock();
        let Some(seat) = &mut state.seats[rank] else { return };
        seat.gone = true;
        if seat.left.is_none() {
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
                    state.poison(Error::Rendezvous { address: self.address.to_string(), seconds, absent });
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
            Request::Activity { inquiry: id, activity } => {
                if let Some(inquiry) = state.inquiry.as_mut().filter(|inquiry| inquiry.id == id) {
                    inquiry.activities.insert(rank, activity);
                    self.answered.notify_all();
                }
            }
            Request::Goodbye { calls } => {
                if let Some(seat) = &mut state.seats[rank] {
                    seat.left = Some(calls.into_iter().collect());
                }
                state.tell_all(&Event::Left { rank });
            }
        }
    }

    /// The ranks that have not come, and what else might explain it.
    fn absent(&self, state: &State) -> String {
        let absent = state.seats.iter().enumerate().filter(|(_, seat)| seat.is_none());
        let absent: Vec<_> = absent.map(|(rank, _)| rank.to_string()).collect();
        let came = self.world - absent.len();
        let s = if absent.len() == 1 { "" } else { "s" };
        let mut text = format!("rank{s} {} ({came} of {} came)", absent.join(", "), self.world);
        match self.refused.load(Ordering::Relaxed) {
            0 => {}
            n => {
                text += &format!("; {n} connections were refused because they did not prove the job's secret")
            }
        }
        text
    }
}
