//! The server in rank 0's process: key-value store, and the arbiter of who has come, left or
//! failed.
//!
//! A thread a connection. A connection that has not proved the secret and joined within two
//! seconds is closed and counted; nothing else of it matters. The first error that reaches the
//! server is the job's first cause; it goes to every rank, also to those that come later.

use super::{
    HEARSAY, Secret, finished,
    secret::HANDSHAKE,
    tune_control,
    verdict::verdict,
    wire::{Event, FrameReader, Member, Next, Place, Request, Stall, write_frame},
};
use crate::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    collections::{BTreeMap, HashMap},
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
/// How long the ranks have to answer where they are.
const INQUIRY: Duration = Duration::from_secs(1);
/// Two inquiries about one call are at least this far apart.
const INQUIRY_PAUSE: Duration = Duration::from_millis(400);

/// A rank's seat at the server.
struct Seat {
    member: Member,
    peer: String,
    stream: TcpStream,
    /// Said goodbye.
    left: bool,
    /// Its connection is closed.
    gone: bool,
}

struct Inquiry {
    id: u64,
    answers: HashMap<usize, Place>,
}

#[derive(Default)]
struct State {
    seats: Vec<Option<Seat>>,
    complete: bool,
    /// No more ranks are wanted: rank 0 gave up.
    closed: bool,
    values: BTreeMap<String, Vec<u8>>,
    /// Ranks that wait for a key: key, request, rank.
    waiting: Vec<(String, u64, usize)>,
    cause: Option<Error>,
    inquiry: Option<Inquiry>,
    inquiries: u64,
    last_inquiry: Option<(u64, u64, Instant)>,
}

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
        listener.set_nonblocking(true).map_err(failed)?;
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
            let mut ready = [PollFd::new(&listener, PollFlags::IN)];
            // An error here shows again, as one of `accept`.
            let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 100_000_000 }));
            let Ok((stream, _)) = listener.accept() else { continue };
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
        if !seat.left {
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
        let mut reader = FrameReader::new(stream.try_clone().ok()?);
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
                let _ = write_frame(&mut stream, &Event::Poison { error });
                // Closing with unread bytes could take the answer away: let the rank close first.
                let _ = reader.next::<Request>(Some(HANDSHAKE));
                None
            }
        }
    }

    fn seat(&self, rank: usize, world: usize, member: Member, stream: &TcpStream) -> Result<()> {
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
        let stream = stream.try_clone().map_err(|e| Error::io(format!("seat rank {rank}"), &e))?;
        state.seats[rank] = Some(Seat { member, peer, stream, left: false, gone: false });
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
                let asked = (stall.group, stall.call.seq);
                let recent = state
                    .last_inquiry
                    .is_some_and(|(group, seq, at)| (group, seq) == asked && at.elapsed() < INQUIRY_PAUSE);
                if state.cause.is_some() || (!stall.expired && (recent || state.inquiry.is_some())) {
                    return;
                }
                drop(state);
                let shared = self.clone();
                // Without a thread the asking rank still has its own, shorter answer.
                let _ = thread::Builder::new()
                    .name("ddp-inquiry".into())
                    .spawn(move || shared.inquire(rank, stall));
            }
            Request::Here { inquiry: id, place } => {
                if let Some(inquiry) = state.inquiry.as_mut().filter(|inquiry| inquiry.id == id) {
                    inquiry.answers.insert(rank, place);
                    self.answered.notify_all();
                }
            }
            Request::Goodbye => {
                if let Some(seat) = &mut state.seats[rank] {
                    seat.left = true;
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

    /// A rank's error becomes the first cause, unless it only says that another rank is gone, which
    /// is still here: then the cause is that one's own, or the deadline's, and on its way.
    fn report(self: Arc<Self>, from: usize, error: Error) {
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
        if let Some(error) = verdict(asker, &stall, |rank| state.left(rank), &answers) {
            state.poison(error);
        }
    }
}

impl State {
    fn present(&self, rank: usize) -> bool {
        self.seats[rank].as_ref().is_some_and(|seat| !seat.left && !seat.gone)
    }

    fn left(&self, rank: usize) -> bool {
        self.seats.get(rank).and_then(Option::as_ref).is_some_and(|seat| seat.left)
    }

    fn tell(&mut self, rank: usize, event: &Event) {
        if let Some(seat) = &mut self.seats[rank].as_mut().filter(|seat| !seat.gone) {
            // A failed write shows as a closed connection in its reader.
            let _ = write_frame(&mut seat.stream, event);
        }
    }

    fn tell_all(&mut self, event: &Event) {
        for rank in 0..self.seats.len() {
            self.tell(rank, event);
        }
    }

    /// The first error is the job's; all others follow from it.
    fn poison(&mut self, error: Error) {
        if self.cause.is_none() {
            self.cause = Some(error.clone());
            self.tell_all(&Event::Poison { error });
        }
    }
}
