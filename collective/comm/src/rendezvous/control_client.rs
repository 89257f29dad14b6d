//! A rank's connection to the server, and the background thread that receives the server's messages.

use super::{
    GroupProbe,
    frame::{FrameReader, Received, write_frame},
    wire::{Event, Members, Place, Request, Stall},
};
use crate::{
    Error, Result,
    sync::{lock, wait},
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    net::{Shutdown, TcpStream},
    sync::{
        Arc, Condvar, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Interval at which the background thread checks waiting calls.
const TICK: Duration = Duration::from_millis(100);

/// A group of this rank.
pub struct WatchedGroup {
    /// Number of its last collective.
    pub last: Arc<AtomicU64>,
    /// `None` after it was dropped, whose memory a weak reference would keep.
    pub probe: Option<Weak<dyn GroupProbe>>,
}

impl WatchedGroup {
    /// The group, unless it was dropped.
    fn probe(&self) -> Option<Arc<dyn GroupProbe>> {
        self.probe.as_ref()?.upgrade()
    }
}

#[derive(Default)]
pub struct ClientState {
    pub members: Option<Members>,
    /// Answers of the store, by request id.
    pub values: HashMap<u64, Option<Vec<u8>>>,
    pub left: BTreeSet<usize>,
    /// All groups by id, including dropped ones.
    pub groups: BTreeMap<u64, WatchedGroup>,
    /// Whether the server has ended, cleanly or not.
    pub gone: bool,
    /// Whether this rank has announced its exit.
    pub closing: bool,
}

pub struct ControlClient {
    pub rank: usize,
    world: usize,
    writer: Mutex<Arc<TcpStream>>,
    pub state: Mutex<ClientState>,
    changed: Condvar,
    /// First cause of the job's failure.
    cause: OnceLock<Error>,
    pub requests: AtomicU64,
}

impl ControlClient {
    /// Takes over the connection and starts the background thread, which ends with the connection.
    ///
    /// # Errors
    /// If the connection cannot be configured or the thread cannot be started.
    pub fn start(rank: usize, world: usize, stream: TcpStream) -> io::Result<Arc<Self>> {
        stream.set_write_timeout(Some(Duration::from_secs(1)))?;
        let stream = Arc::new(stream);
        let reader = FrameReader::new(stream.clone());
        let client = Arc::new(ControlClient {
            rank,
            world,
            writer: Mutex::new(stream),
            state: Mutex::default(),
            changed: Condvar::new(),
            cause: OnceLock::new(),
            requests: AtomicU64::new(0),
        });
        let listening = client.clone();
        thread::Builder::new().name("ddp-control".into()).spawn(move || listening.listen(reader))?;
        Ok(client)
    }

    /// The job's first cause of failure, if it has failed.
    pub fn cause(&self) -> Option<Error> {
        self.cause.get().cloned()
    }

    /// Sends without waiting for an answer. After a failure the background thread finds the connection
    /// closed.
    pub fn send(&self, request: &Request) {
        let writer = lock(&self.writer);
        if write_frame(&writer, request).is_err() {
            let _ = writer.shutdown(Shutdown::Both);
        }
    }

    /// Sends a waiting call. The list of all ranks is left out, because all ranks may send it at once.
    pub fn send_stall(&self, mut stall: Stall) {
        if stall.members.len() == self.world {
            stall.members.clear();
        }
        self.send(&Request::Stall(stall));
    }

    pub fn close(&self) {
        let writer = lock(&self.writer);
        let _ = writer.shutdown(Shutdown::Both);
    }

    /// Waits until `found` returns a value; `None` at `deadline`. Fails if the job has failed.
    ///
    /// # Errors
    /// The first cause, if the job has failed.
    pub fn wait<T>(
        &self,
        deadline: Instant,
        mut found: impl FnMut(&mut ClientState) -> Option<T>,
    ) -> Result<Option<T>> {
        let mut state = lock(&self.state);
        loop {
            if let Some(cause) = self.cause.get() {
                return Err(cause.clone());
            }
            if let Some(value) = found(&mut state) {
                return Ok(Some(value));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || state.gone {
                return Ok(None);
            }
            state = wait(&self.changed, state, left);
        }
    }

    /// Records the first cause of failure and wakes all waiting threads.
    pub fn poison(&self, error: Error) {
        let cause = self.cause.get_or_init(|| error);
        // Locks the state: a thread that has not seen the cause waits by then.
        let groups = self.groups();
        self.changed.notify_all();
        groups.iter().for_each(|group| group.abort());
        // Afterwards, so that no call waits for a disk.
        groups.iter().for_each(|group| group.record(cause));
    }

    /// The groups that have not been dropped.
    pub fn groups(&self) -> Vec<Arc<dyn GroupProbe>> {
        lock(&self.state).groups.values().filter_map(WatchedGroup::probe).collect()
    }

    /// The background thread.
    fn listen(&self, mut reader: FrameReader) {
        let reason = loop {
            match reader.next(TICK) {
                Ok(Received::Message(event)) => self.hear(event),
                Ok(Received::Nothing) => {}
                Ok(Received::Closed) => break "its process ended".to_string(),
                Err(error) => break format!("the connection to it broke ({error})"),
            }
            for stall in self.groups().iter().filter_map(|group| group.stalled()) {
                self.send_stall(stall);
            }
        };
        let mut state = lock(&self.state);
        // Rank 0 may finish first, and its server with it.
        if state.closing || state.left.contains(&0) {
            state.gone = true;
            drop(state);
            return self.changed.notify_all();
        }
        drop(state);
        // The cause is set before the end, for threads that wait for it.
        self.poison(Error::PeerLost { rank: 0, reason });
        lock(&self.state).gone = true;
        self.changed.notify_all();
    }

    fn hear(&self, event: Event) {
        match event {
            Event::Welcome { members } => lock(&self.state).members = Some(members),
            Event::Value { id, value } => {
                lock(&self.state).values.insert(id, value);
            }
            Event::Where { inquiry, group, seq, message } => {
                let state = lock(&self.state);
                let watched = state.groups.get(&group);
                let counter = watched.filter(|_| message.is_none()).map(|group| group.last.clone());
                let probe = watched.and_then(WatchedGroup::probe);
                drop(state);
                let gone = || Place {
                    seq: counter.as_ref().map_or(0, |last| last.load(Ordering::Relaxed)),
                    closed: counter.is_some(),
                    ..Place::default()
                };
                let place = probe.map_or_else(gone, |group| group.place(seq, message));
                self.send(&Request::Here { inquiry, place });
            }
            Event::Left { rank } => {
                lock(&self.state).left.insert(rank);
            }
            Event::Poison { error } => return self.poison(error),
        }
        self.changed.notify_all();
    }
}
