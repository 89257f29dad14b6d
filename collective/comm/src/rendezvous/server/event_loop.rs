//! The thread that serves all connections of the server.
//!
//! Sockets are non-blocking, and each connection has its own queue of output, so that a rank that does not read its
//! messages does not delay others.

use super::{
    connection::{Connection, End},
    state::{Outgoing, ServerState},
};
use crate::{
    Secret,
    rendezvous::{listener::MAX_UNPROVEN, secret::retry, tune_control},
    sync::lock,
};
use mio::{
    Events, Interest, Poll, Token,
    net::{TcpListener, TcpStream},
};
use std::{
    collections::HashMap,
    io, mem, net,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// Time between two checks of deadlines, and of whether the server is still needed.
const TICK: Duration = Duration::from_millis(50);
/// Maximum number of events that are handled at a time.
const EVENTS: usize = 1024;
/// Maximum number of connections that wait to be accepted. All ranks connect at once.
const BACKLOG: i32 = 4096;
const LISTENER: Token = Token(usize::MAX);

pub struct EventLoop {
    poll: Poll,
    listener: Option<TcpListener>,
    /// Whether connections may wait to be accepted.
    arrivals: bool,
    /// By token.
    connections: HashMap<usize, Connection>,
    /// The token of the next connection.
    next: usize,
    /// Connections that may have more input than was read at a time.
    unfinished: Vec<usize>,
    swept: Instant,
    secret: Secret,
    state: Arc<Mutex<ServerState>>,
}

impl EventLoop {
    /// An event loop without connections.
    ///
    /// # Errors
    /// If the system has no more file descriptors.
    pub fn new(state: Arc<Mutex<ServerState>>, secret: Secret) -> io::Result<Self> {
        Ok(EventLoop {
            poll: Poll::new()?,
            listener: None,
            arrivals: false,
            connections: HashMap::new(),
            next: 0,
            unfinished: Vec::new(),
            swept: Instant::now(),
            secret,
            state,
        })
    }

    /// Accepts connections of `listener`.
    ///
    /// # Errors
    /// If the listener cannot be configured.
    pub fn listen(&mut self, listener: net::TcpListener) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let mut listener = TcpListener::from_std(listener);
        self.poll.registry().register(&mut listener, LISTENER, Interest::READABLE)?;
        self.listener = Some(listener);
        Ok(())
    }

    /// Adds a rank of this process with its connection.
    ///
    /// # Errors
    /// If the connection cannot be configured.
    pub fn add_rank(&mut self, rank: usize, stream: net::TcpStream) -> io::Result<()> {
        stream.set_nonblocking(true)?;
        let token = self.next;
        self.add(Connection::of_rank(rank, TcpStream::from_std(stream)))?;
        lock(&self.state).add_thread(rank, token);
        Ok(())
    }

    /// Starts the thread, which runs until the server is not needed.
    ///
    /// # Errors
    /// If the system starts no thread.
    pub fn start(self) -> io::Result<()> {
        thread::Builder::new().name("ddp-server".into()).spawn(move || self.run()).map(drop)
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        let shared = self.state.clone();
        loop {
            let timeout = if self.unfinished.is_empty() { TICK } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(timeout)) {
                Ok(()) => {}
                Err(error) if retry(&error) => continue,
                // Dropping the connections ends the job with an error on all ranks.
                Err(_) => return,
            }
            let mut state = lock(&shared);
            let mut ready = mem::take(&mut self.unfinished);
            ready.extend(events.iter().map(|event| event.token().0));
            for token in ready {
                if token == LISTENER.0 {
                    self.arrivals = true;
                } else {
                    self.serve(token, &mut state);
                }
            }
            self.accept();
            // Input that arrived before a deadline is handled before it is checked.
            if self.swept.elapsed() >= TICK && events.iter().count() < EVENTS {
                self.sweep(&mut state);
            }
            state.advance_inquiry();
            self.deliver(&mut state);
            if state.is_deserted() {
                self.listener = None;
                if self.connections.is_empty() {
                    return;
                }
            }
        }
    }

    /// Accepts connections up to the limit. The others wait in the kernel's queue.
    fn accept(&mut self) {
        if !self.arrivals {
            return;
        }
        let mut unproven = self.connections.values().filter(|connection| !connection.has_joined()).count();
        while self.arrivals && unproven < MAX_UNPROVEN {
            match self.listener.as_ref().map(TcpListener::accept) {
                Some(Ok((stream, _))) => {
                    // On failure the connection is closed, and the peer connects again.
                    if tune_control(&stream).and_then(|()| self.add(Connection::new(stream))).is_ok() {
                        unproven += 1;
                    }
                }
                Some(Err(error)) if error.kind() == io::ErrorKind::WouldBlock => self.arrivals = false,
                None => self.arrivals = false,
                // For example too many open files: tried again with the next events.
                Some(Err(_)) => return,
            }
        }
    }

    fn add(&mut self, mut connection: Connection) -> io::Result<()> {
        let interest = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut connection.stream, Token(self.next), interest)?;
        self.connections.insert(self.next, connection);
        self.next += 1;
        Ok(())
    }

    fn serve(&mut self, token: usize, state: &mut ServerState) {
        let Some(connection) = self.connections.get_mut(&token) else { return };
        match connection.advance(token, &self.secret, state) {
            Ok(true) => self.unfinished.push(token),
            Ok(false) => {}
            Err(end) => self.end(token, &end, state),
        }
    }

    /// Closes connections whose deadline has passed.
    fn sweep(&mut self, state: &mut ServerState) {
        self.swept = Instant::now();
        let expired = |(token, connection): (&usize, &Connection)| Some((*token, connection.expired()?));
        let expired: Vec<_> = self.connections.iter().filter_map(expired).collect();
        for (token, error) in expired {
            self.end(token, &Some(error), state);
        }
    }

    fn end(&mut self, token: usize, end: &End, state: &mut ServerState) {
        if let Some(connection) = self.connections.remove(&token) {
            connection.end(end, state);
        }
    }

    /// Sends the messages of the state. The last ones wait until all output is sent.
    fn deliver(&mut self, state: &mut ServerState) {
        let (last, others): (Vec<_>, _) =
            mem::take(&mut state.outbox).into_iter().partition(|outgoing| outgoing.last);
        self.send(others);
        if last.is_empty() || self.connections.values().all(Connection::is_flushed) {
            self.send(last);
        } else {
            state.outbox = last;
        }
    }

    fn send(&mut self, messages: Vec<Outgoing>) {
        for Outgoing { token, frame, .. } in messages {
            if let Some(connection) = self.connections.get_mut(&token) {
                connection.send(frame);
            }
        }
    }
}
