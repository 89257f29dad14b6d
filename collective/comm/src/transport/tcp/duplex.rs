//! Transfers the messages of one collective call over all its connections at once, in one thread, so that no
//! order of sending and receiving can deadlock on full socket buffers.
//!
//! A [`Duplex`] is the connection to one peer. Each direction is a [`Transfer`] of a header and parts of
//! memory, in order. After every progress a hook reduces the received data and allows further parts to be
//! sent.

use super::transfer::{Memory, Transfer};
use crate::{
    Error, Result,
    rendezvous::secret::retry,
    transport::{
        header::{self, HEADER},
        method::{Deadline, mismatch},
    },
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::TcpStream,
};

/// Maximum number of slices that one system call sends.
const SLICES: usize = 8;

/// The connection to one peer with both directions of a call.
pub(super) struct Duplex<'a> {
    /// Rank in the group.
    pub peer: usize,
    pub stream: &'a TcpStream,
    pub send: Transfer,
    pub recv: Transfer,
    head: [u8; HEADER],
}

impl<'a> Duplex<'a> {
    pub fn new(peer: usize, stream: &'a TcpStream, send: Transfer, recv: Transfer) -> Self {
        Duplex { peer, stream, send, recv, head: [0; HEADER] }
    }

    pub fn complete(&self) -> bool {
        self.send.complete() && self.recv.complete()
    }

    fn push(&mut self, head: &[u8; HEADER], memory: &Memory) -> io::Result<bool> {
        let transfer = &mut self.send;
        if !transfer.ready() {
            return Ok(false);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        slices[0] = IoSlice::new(&head[transfer.head..]);
        let open = transfer.parts[transfer.index..]
            .iter()
            .take(transfer.open.unwrap_or(0).saturating_sub(transfer.index));
        let mut used = 1;
        for part in open.take(SLICES - 1) {
            slices[used] = IoSlice::new(part.read(memory, if used == 1 { transfer.skip } else { 0 }));
            used += 1;
        }
        let mut stream = self.stream;
        match stream.write_vectored(&slices[..used]) {
            Ok(sent) => {
                transfer.advance(sent);
                Ok(sent > 0)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn pull(&mut self, memory: &mut Memory) -> io::Result<bool> {
        let transfer = &mut self.recv;
        if !transfer.ready() {
            return Ok(false);
        }
        let mut stream = self.stream;
        let part = transfer.parts.get(transfer.index).filter(|_| transfer.open > Some(transfer.index));
        let body: &mut [u8] = part.map_or(&mut [], |part| part.write(memory, transfer.skip));
        let read = if transfer.head < HEADER {
            let head = IoSliceMut::new(&mut self.head[transfer.head..]);
            stream.read_vectored(&mut [head, IoSliceMut::new(body)])
        } else {
            stream.read(body)
        };
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                transfer.advance(got);
                Ok(true)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Runs all duplexes until they are complete. `hook` is called after every progress.
pub(super) fn run(
    me: usize,
    deadline: &Deadline,
    memory: &mut Memory,
    duplexes: &mut [Duplex],
    mut hook: impl FnMut(&mut Memory, &mut [Duplex]),
) -> Result<()> {
    let head = header::encode::<HEADER>(deadline.call);
    loop {
        let mut moved = false;
        for duplex in duplexes.iter_mut() {
            let rank = duplex.peer;
            let lost = |error: io::Error| Error::PeerLost {
                rank,
                reason: match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        format!("it closed its connection during {}", deadline.call)
                    }
                    _ => format!("its connection broke during {} ({error})", deadline.call),
                },
            };
            let headed = duplex.recv.head == HEADER;
            moved |= duplex.push(&head, memory).map_err(lost)?;
            moved |= duplex.pull(memory).map_err(lost)?;
            if !headed && duplex.recv.head == HEADER && duplex.head != head {
                return Err(mismatch(deadline.call.side(me), header::side(duplex.peer, &duplex.head)));
            }
        }
        if moved {
            hook(memory, duplexes);
        }
        if duplexes.iter().all(Duplex::complete) {
            return Ok(());
        }
        deadline.check(|| {
            let waiting = duplexes
                .iter()
                .filter(|duplex| !duplex.complete())
                .map(|duplex| format!("rank {}", duplex.peer));
            format!("waiting for {}", waiting.collect::<Vec<_>>().join(", "))
        })?;
        if !moved {
            wait(duplexes);
        }
    }
}

/// Sleeps until a connection is ready, at most 50 ms.
fn wait(duplexes: &[Duplex]) {
    let mut ready: Vec<_> = duplexes
        .iter()
        .filter_map(|duplex| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, duplex.recv.ready());
            flags.set(PollFlags::OUT, duplex.send.ready());
            (!flags.is_empty()).then(|| PollFd::new(duplex.stream, flags))
        })
        .collect();
    // After an error here, such as an interruption, the loop checks again.
    let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
}
