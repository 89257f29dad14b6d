//! A connection of the server: how far its peer has been admitted, incomplete input, and output that is not sent.

use super::state::ServerState;
use crate::{
    Error, Secret,
    rendezvous::{
        frame::{encode, take},
        secret::{Challenge, GREETING, HANDSHAKE, PROOF, is_greeting, retry},
        wire::{Event, Request},
    },
};
use mio::net::TcpStream;
use std::{
    collections::VecDeque,
    io::{self, Read, Write},
    sync::Arc,
    time::{Duration, Instant},
};

/// Time in which a rank must take a part of a message, or its connection is closed.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);
/// Number of reads after which other connections are served.
const READS: usize = 16;

/// What is expected from the peer next.
enum Stage {
    /// The first message of the handshake.
    Greeting,
    /// The last message of the handshake.
    Proof(Challenge),
    Hello,
    Join,
    /// Any request of this rank.
    Rank(usize),
    /// Nothing: the peer closes the connection when it has read why it is refused.
    Refused,
}

/// Why a connection ends: an error, or `None` if the peer has closed it or violated the protocol.
pub type End = Option<io::Error>;

pub struct Connection {
    pub stream: TcpStream,
    stage: Stage,
    /// Time at which a peer that has not joined is disconnected.
    deadline: Option<Instant>,
    input: Vec<u8>,
    output: VecDeque<Arc<[u8]>>,
    /// Number of bytes of the first frame of `output` that are sent.
    sent: usize,
    /// Time since which nothing could be sent.
    blocked: Option<Instant>,
}

impl Connection {
    /// A connection whose peer has to authenticate and join.
    pub fn new(stream: TcpStream) -> Self {
        let deadline = Some(Instant::now() + HANDSHAKE);
        Connection { stage: Stage::Greeting, deadline, ..Self::of_rank(0, stream) }
    }

    /// The connection of a rank of this process.
    pub fn of_rank(rank: usize, stream: TcpStream) -> Self {
        Connection {
            stream,
            stage: Stage::Rank(rank),
            deadline: None,
            input: Vec::new(),
            output: VecDeque::new(),
            sent: 0,
            blocked: None,
        }
    }

    pub fn has_joined(&self) -> bool {
        matches!(self.stage, Stage::Rank(_))
    }

    /// Whether all output is sent.
    pub fn is_flushed(&self) -> bool {
        self.output.is_empty()
    }

    /// Sends output and handles input until there is no more, or for a limited number of reads.
    ///
    /// Returns whether there may be more input.
    ///
    /// # Errors
    /// If the connection ends or the peer violates the protocol.
    pub fn advance(&mut self, token: usize, secret: &Secret, state: &mut ServerState) -> Result<bool, End> {
        self.flush();
        for _ in 0..READS {
            if !self.fill()? {
                return Ok(false);
            }
            while self.step(token, secret, state)? {}
        }
        Ok(true)
    }

    /// Sends a frame, after those that are not sent yet.
    pub fn send(&mut self, frame: Arc<[u8]>) {
        self.output.push_back(frame);
        self.flush();
    }

    /// The reason to close this connection now, if there is one.
    pub fn expired(&self) -> Option<io::Error> {
        if self.deadline.is_some_and(|deadline| Instant::now() >= deadline) {
            return Some(io::ErrorKind::TimedOut.into());
        }
        let blocked = self.blocked.filter(|since| since.elapsed() >= WRITE_TIMEOUT)?.elapsed();
        let reason = format!("it has not read its messages for {:.1} s", blocked.as_secs_f64());
        Some(io::Error::new(io::ErrorKind::TimedOut, reason))
    }

    /// Records the end of this connection.
    pub fn end(self, end: &End, state: &mut ServerState) {
        let reason = || match end {
            None => "its process ended or closed the connection".into(),
            Some(error) => format!("its connection broke ({error})"),
        };
        match self.stage {
            Stage::Greeting | Stage::Proof(_) => state.refused += 1,
            Stage::Hello | Stage::Join | Stage::Refused => {}
            Stage::Rank(rank) => state.disconnected(rank, reason()),
        }
    }

    fn flush(&mut self) {
        while let Some(frame) = self.output.front() {
            match self.stream.write(&frame[self.sent..]) {
                Ok(sent) if sent > 0 => {
                    self.sent += sent;
                    self.blocked = None;
                    if self.sent == frame.len() {
                        self.output.pop_front();
                        self.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if retry(&error) => {
                    self.blocked.get_or_insert_with(Instant::now);
                    return;
                }
                // The connection is found closed when the peer's last messages are read.
                Ok(_) | Err(_) => {
                    self.output.clear();
                    self.blocked = None;
                }
            }
        }
    }

    /// Reads once; false if nothing has arrived. No more than the handshake is read of an unauthenticated peer.
    fn fill(&mut self) -> Result<bool, End> {
        let mut chunk = [0; 8192];
        let most = match self.stage {
            Stage::Greeting => GREETING - self.input.len(),
            Stage::Proof(_) => PROOF - self.input.len(),
            _ => chunk.len(),
        };
        match self.stream.read(&mut chunk[..most]) {
            Ok(0) => Err(None),
            Ok(n) => {
                self.input.extend_from_slice(&chunk[..n]);
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(true),
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles the next message of the input; false if it is not complete.
    fn step(&mut self, token: usize, secret: &Secret, state: &mut ServerState) -> Result<bool, End> {
        match &self.stage {
            Stage::Greeting => {
                if !is_greeting(&self.input) {
                    return Err(None);
                }
                let Some(greeting) = self.input.first_chunk() else { return Ok(false) };
                let (reply, challenge) = secret.challenge(greeting);
                self.input.clear();
                self.stage = Stage::Proof(challenge);
                self.send(reply[..].into());
            }
            Stage::Proof(challenge) => {
                let Some(proof) = self.input.first_chunk() else { return Ok(false) };
                if !challenge.accepts(proof) {
                    return Err(None);
                }
                self.input.clear();
                self.stage = Stage::Hello;
            }
            Stage::Hello => match take(&mut self.input)? {
                None => return Ok(false),
                Some(Request::Hello(hello)) => match state.check(&hello, &self.peer()) {
                    Ok(()) => self.stage = Stage::Join,
                    Err(error) => self.refuse(error),
                },
                Some(_) => return Err(None),
            },
            Stage::Join => match take(&mut self.input)? {
                None => return Ok(false),
                Some(Request::Join { rank, world, member }) => {
                    match state.join(rank, world, member, &self.peer(), token) {
                        Ok(()) => {
                            self.stage = Stage::Rank(rank);
                            self.deadline = None;
                        }
                        Err(error) => self.refuse(error),
                    }
                }
                Some(_) => return Err(None),
            },
            Stage::Rank(rank) => {
                let rank = *rank;
                let Some(request) = take(&mut self.input)? else { return Ok(false) };
                state.handle(rank, request);
            }
            Stage::Refused => {
                self.input.clear();
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends the reason to a peer that may not join. Closing at once could take it away, with input unread.
    fn refuse(&mut self, error: Error) {
        self.stage = Stage::Refused;
        self.deadline = Some(Instant::now() + HANDSHAKE);
        if let Ok(frame) = encode(&Event::Poison { error }) {
            self.send(frame.into());
        }
    }

    fn peer(&self) -> String {
        self.stream.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string())
    }
}
