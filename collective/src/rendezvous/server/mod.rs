//! The server in rank 0's process: key-value store, and the arbiter of who has come, left or
//! failed.
//!
//! A thread a connection. A connection that has not proved the secret and joined within two
//! seconds is closed and counted; nothing else of it matters. The first error that reaches the
//! server is the job's first cause; it goes to every rank, also to those that come later.

mod inquiry;
mod state;

use super::{
    Secret,
    secret::HANDSHAKE,
    tune_control,
    wire::{Event, FrameReader, Member, Next, Request, write_frame},
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
    time::{Duration, Instant},
};

/// Most connections that may be proving themselves at one time.
const MAX_UNPROVEN: usize = 1024;

struct Shared {
    world: usize,
    address: SocketAddr,
    secret: Secret,
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
    /// Serves a world of `world` ranks on `listener`.
    pub fn start(listener: TcpListener, world: usize, secret: Secret) -> Result<Self> {
        let failed = |e| Error::io("start the rendezvous server", &e);
        let address = listener.local_addr().map_err(failed)?;
        super::tune_listener(&listener).map_err(failed)?;
        let state = State { seats: (0..world).map(|_| None).collect(), ..State::default() };
        let shared = Arc::new(Shared {
            world,
            address,
            secret,
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
        let Some((rank, mut reader)) = joined else {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return;
        };
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

    /// Handshake and first message, against the clock.
    fn admit(&self, mut stream: TcpStream) -> Option<(usize, FrameReader)> {
        let deadline = Instant::now() + HANDSHAKE;
        stream.set_nonblocking(false).ok()?;
        self.secret.answer(&mut stream, deadline).ok()?;
        tune_control(&stream).ok()?;
        stream.set_write_timeout(Some(Duration::from_secs(1))).ok()?;
        let stream = Arc::new(stream);
        let mut reader = FrameReader::new(stream.clone());
        let request = loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            match reader.next(Some(left.max(Duration::from_millis(1)))).ok()? {
                Next::Frame(request) => break request,
                Next::Idle => {}
                Next::Closed => return None,
            }
        };
        let Request::Join { rank, world, member } = request else { return None };
        match self.seat(rank, world, member, &stream) {
            Ok(()) => Some((rank, reader)),
            Err(error) => {
                let _ = write_frame(&stream, &Event::Poison { error });
                // Closing with unread bytes could take the answer away: let the rank close first.
                let _ = reader.next::<Request>(Some(HANDSHAKE));
                None
            }
        }
    }

    fn seat(&self, rank: usize, world: usize, member: Member, stream: &Arc<TcpStream>) -> Result<()> {
        let peer = stream.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string());
        let peer = format!("process {} on {} ({peer})", member.pid, member.host);
        let mut state = self.lock();
        if let Some(cause) = &state.cause {
            return Err(cause.clone());
        }
        let wrong = if world != self.world {
            Some(format!(
                "rank {rank} ({peer}) was started with world size {world}, but rank 0 with {}: start all ranks with the same WORLD_SIZE",
                self.world
            ))
        } else if rank >= world {
            Some(format!("{peer} has rank {rank}, which a world of {world} does not have"))
        } else {
            state.seats[rank].as_ref().map(|seat| {
                format!(
                    "two processes have rank {rank}: {} and {peer}; give every process its own RANK",
                    seat.peer
                )
            })
        };
        if let Some(wrong) = wrong {
            let error = Error::Invalid(wrong);
            // A job that runs already is not hurt by one that comes to the wrong address.
            if !state.complete {
                state.poison(error.clone());
            }
            return Err(error);
        }
        let stream = stream.clone();
        state.seats[rank] = Some(Seat { member, peer, stream, left: None, gone: false });
        if state.seats.iter().all(Option::is_some) {
            state.complete = true;
            let members = state.seats.iter().flatten().map(|seat| seat.member.clone()).collect();
            state.tell_all(&Event::Welcome { members });
        }
        Ok(())
    }

    fn handle(self: Arc<Self>, rank: usize, request: Request) {
        let mut state = self.lock();
        match request {
            // Only the first message joins.
            Request::Join { .. } => {}
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
                    state.tell(waiter, &Event::Value { id, value: value.clone() });
                }
                state.values.insert(key, value);
            }
            Request::Get { id, key } => match state.values.get(&key).cloned() {
                Some(value) => state.tell(rank, &Event::Value { id, value }),
                None => state.waiting.push((key, id, rank)),
            },
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
                    inquiry.answers.insert(rank, place);
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
