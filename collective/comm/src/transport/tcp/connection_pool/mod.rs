//! The data connections of one rank: a listener for all its groups, and outgoing connections.
//!
//! A connection is made when two ranks of a group first exchange data: the higher rank connects, the lower
//! one waits. Both authenticate, then:
//!
//! ```text
//! dialler  → listener   group (8)  rank of the dialler (4)  rank of the listener (4)
//! listener → dialler    ACCEPTED (1)
//! dialler  → listener   CONFIRMED (1)
//! ```
//!
//! Each end has its own time limit of two seconds, which begin at different moments. A dialler may therefore
//! give up and dial again while the listener still answers its first connection. Only the last byte
//! establishes a connection: the dialler sends it over the one connection that it keeps, and closes the
//! others.

use crate::{
    Error, Result, Secret,
    rendezvous::{control::dial, listener, secret},
    sync::{lock, wait},
};
use std::{
    collections::HashMap,
    io::{self, Read},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const ACCEPTED: u8 = 0xdd;
pub(crate) const CONFIRMED: u8 = 0xcc;
/// Maximum time between checks of a waiting rank's deadline.
const SLICE: Duration = Duration::from_millis(50);

/// State of the pool that its threads share.
#[derive(Debug)]
pub(crate) struct Shared {
    rank: usize,
    secret: Secret,
    /// By group and rank of the dialler.
    pub arrivals: Mutex<HashMap<(u64, usize), TcpStream>>,
    arrived: Condvar,
    closing: AtomicBool,
}

/// Accepts and opens this rank's data connections. Stops listening when dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    shared: Arc<Shared>,
    address: SocketAddr,
}

impl Drop for ConnectionPool {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::Relaxed);
    }
}

impl ConnectionPool {
    /// Listens on a free port of `ip` as world rank `rank`.
    ///
    /// # Errors
    /// [`Error::Io`] if no port can be bound or the thread cannot be started.
    pub fn start(ip: IpAddr, rank: usize, secret: Secret) -> Result<Self> {
        let failed = |e| Error::io(format!("listen for data connections on {ip}"), &e);
        let listener = TcpListener::bind((ip, 0)).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let shared = Arc::new(Shared::new(rank, secret));
        let (open, receiving) = (shared.clone(), shared.clone());
        // A peer that fails is unauthenticated, or a rank that will dial again.
        let receive = move |stream, unproven| drop((receiving.receive(stream), unproven));
        listener::listen(listener, "ddp-data", move || !open.closing.load(Ordering::Relaxed), receive)
            .map_err(failed)?;
        Ok(ConnectionPool { shared, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The connection to world rank `peer` for `group`, non-blocking.
    ///
    /// `check` is called repeatedly while this waits; its error, due at the latest at `until`, ends the wait.
    ///
    /// # Errors
    /// The error of `check`, [`Error::Unauthenticated`] if the secrets differ, or [`Error::Io`].
    pub fn connect(
        &self,
        group: u64,
        peer: usize,
        address: SocketAddr,
        until: Instant,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<TcpStream> {
        let failed = |e| Error::io(format!("prepare the connection to rank {peer}"), &e);
        let stream = if self.shared.rank < peer {
            self.shared.await_arrival(group, peer, check)?
        } else {
            loop {
                check()?;
                let deadline = until.min(Instant::now() + secret::HANDSHAKE);
                match self.shared.dial(group, peer, address, deadline) {
                    Ok(stream) => break stream,
                    Err(error @ Error::Unauthenticated { .. }) => return Err(error),
                    // The peer may be stopped or slow; the deadline ends this loop.
                    Err(_) => thread::sleep(Duration::from_millis(20)),
                }
            }
        };
        crate::rendezvous::tune_data(&stream).map_err(failed)?;
        stream.set_nonblocking(true).map_err(failed)?;
        Ok(stream)
    }
}

impl Shared {
    pub fn new(rank: usize, secret: Secret) -> Self {
        Shared {
            rank,
            secret,
            arrivals: Mutex::default(),
            arrived: Condvar::new(),
            closing: AtomicBool::new(false),
        }
    }

    fn await_arrival(
        &self,
        group: u64,
        peer: usize,
        mut check: impl FnMut() -> Result<()>,
    ) -> Result<TcpStream> {
        let mut arrivals = lock(&self.arrivals);
        loop {
            if let Some(stream) = arrivals.remove(&(group, peer)).filter(is_open) {
                return Ok(stream);
            }
            check()?;
            arrivals = wait(&self.arrived, arrivals, SLICE);
        }
    }

    /// Connects to `peer`, waits until it has accepted, and confirms the connection.
    fn dial(&self, group: u64, peer: usize, address: SocketAddr, deadline: Instant) -> Result<TcpStream> {
        let failed = |e| Error::io(format!("connect to rank {peer} at {address}"), &e);
        let mut stream = dial(address, &self.secret, deadline)?;
        let hello =
            [&group.to_le_bytes()[..], &(self.rank as u32).to_le_bytes(), &(peer as u32).to_le_bytes()];
        secret::write_by(&mut stream, &hello.concat(), deadline).map_err(failed)?;
        let mut answer = [0];
        secret::read_by(&mut stream, &mut answer, deadline).map_err(failed)?;
        if answer != [ACCEPTED] {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        secret::write_by(&mut stream, &[CONFIRMED], deadline).map_err(failed)?;
        Ok(stream)
    }

    pub fn receive(&self, mut stream: TcpStream) -> Result<()> {
        let failed = |e| Error::io("accept a data connection", &e);
        let deadline = Instant::now() + secret::HANDSHAKE;
        self.secret.answer(&mut stream, deadline)?;
        let (mut group, mut ranks) = ([0; 8], [[0; 4]; 2]);
        secret::read_by(&mut stream, &mut group, deadline).map_err(failed)?;
        secret::read_by(&mut stream, ranks.as_flattened_mut(), deadline).map_err(failed)?;
        let [from, to] = ranks.map(|rank| u32::from_le_bytes(rank) as usize);
        if to != self.rank {
            return Err(failed(io::ErrorKind::InvalidData.into()));
        }
        secret::write_by(&mut stream, &[ACCEPTED], deadline).map_err(failed)?;
        self.await_confirmation(&mut stream).map_err(failed)?;
        lock(&self.arrivals).insert((u64::from_le_bytes(group), from), stream);
        self.arrived.notify_all();
        Ok(())
    }

    /// Waits until the dialler confirms or closes the connection.
    ///
    /// There is no deadline: a dialler that has confirmed uses the connection, so that this end must not give
    /// up first.
    fn await_confirmation(&self, stream: &mut TcpStream) -> io::Result<()> {
        let mut byte = [0];
        stream.set_read_timeout(Some(SLICE))?;
        loop {
            match stream.read(&mut byte) {
                Ok(1) if byte == [CONFIRMED] => return Ok(()),
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                Err(error) if secret::retry(&error) && !self.closing.load(Ordering::Relaxed) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

/// Whether the peer has not closed `stream`, or has sent data before.
fn is_open(stream: &TcpStream) -> bool {
    let peeked = stream.set_nonblocking(true).and_then(|()| stream.peek(&mut [0]));
    match peeked {
        Ok(bytes) => bytes > 0,
        Err(error) => secret::retry(&error),
    }
}

#[cfg(test)]
mod tests;
