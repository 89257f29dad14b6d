//! Transfers the messages of one collective call over all its connections at once, in one thread, so that no
//! order of sending and receiving can deadlock on full socket buffers.
//!
//! After every progress, the schedule reduces the received data and allows further parts to be sent.

use super::schedule::{Arithmetic, Duplex, Part, Progress, Transfer};
use crate::{
    Error, Result,
    error::names,
    reduce::{Reduction, fold_own, reduce_pointers},
    rendezvous::secret::retry,
    transport::{
        header::{HEADER, Header, mismatch},
        method::Deadline,
    },
};
use bytemuck::{Zeroable, bytes_of, bytes_of_mut};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::TcpStream,
    ops::Range,
};

/// Maximum number of slices that one system call sends.
const SLICES: usize = 8;

/// Memory of a call.
pub(super) struct Memory<'a> {
    /// The caller's buffer.
    pub user: &'a mut [u8],
    pub scratch: &'a mut [u8],
}

impl Memory<'_> {
    /// The bytes of `part` from its byte `from` on.
    pub fn read(&self, part: &Part, from: usize) -> &[u8] {
        match part {
            Part::User(range) => &self.user[range.start + from..range.end],
            Part::Scratch(range) => &self.scratch[range.start + from..range.end],
        }
    }

    /// As [`Memory::read`], to be written.
    pub fn write(&mut self, part: &Part, from: usize) -> &mut [u8] {
        match part {
            Part::User(range) => &mut self.user[range.start + from..range.end],
            Part::Scratch(range) => &mut self.scratch[range.start + from..range.end],
        }
    }
}

impl Arithmetic for Memory<'_> {
    fn reduce(&mut self, reduction: Reduction, input: &dyn Fn(usize) -> Part, out: Part) {
        let Reduction { dtype, op, world } = reduction;
        let bytes = out.bytes();
        let (user, scratch) = (self.user.as_mut_ptr(), self.scratch.as_mut_ptr());
        let (users, scratches) = (self.user.len(), self.scratch.len());
        let pointer = |part: Part| {
            let (start, len, range) = match part {
                Part::User(range) => (user, users, range),
                Part::Scratch(range) => (scratch, scratches, range),
            };
            assert!(range.len() == bytes && range.end <= len, "a part outside its memory");
            start.wrapping_add(range.start)
        };
        let input = |rank| pointer(input(rank)).cast_const();
        // SAFETY: `bytes` bytes each, checked at every use, in memory that is borrowed for this call. Parts of
        // a schedule are slots of one size, which coincide or do not overlap.
        unsafe { reduce_pointers(dtype, op, world.size, &input, &[pointer(out)], bytes) }
    }

    fn fold(&mut self, reduction: Reduction, own: Range<usize>, partials: Range<usize>) {
        fold_own(reduction, &mut self.user[own], &mut self.scratch[partials]);
    }
}

/// Sends what the transfer allows; returns whether anything was sent.
fn push(mut stream: &TcpStream, transfer: &mut Transfer, head: &Header, memory: &Memory) -> io::Result<bool> {
    if !transfer.ready() {
        return Ok(false);
    }
    let mut slices = [IoSlice::new(&[]); SLICES];
    slices[0] = IoSlice::new(&bytes_of(head)[transfer.head..]);
    let open = transfer.parts[transfer.moved..]
        .iter()
        .take(transfer.open.unwrap_or(0).saturating_sub(transfer.moved));
    let mut used = 1;
    for part in open.take(SLICES - 1) {
        slices[used] = IoSlice::new(memory.read(part, if used == 1 { transfer.skip } else { 0 }));
        used += 1;
    }
    match stream.write_vectored(&slices[..used]) {
        Ok(sent) => {
            transfer.advance(sent);
            Ok(sent > 0)
        }
        Err(error) if retry(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Receives what the transfer allows, the header into `head`; returns whether anything was received.
fn pull(
    mut stream: &TcpStream,
    transfer: &mut Transfer,
    head: &mut Header,
    memory: &mut Memory,
) -> io::Result<bool> {
    if !transfer.ready() {
        return Ok(false);
    }
    let part = transfer.parts.get(transfer.moved).filter(|_| transfer.open > Some(transfer.moved));
    let body: &mut [u8] = part.map_or(&mut [], |part| memory.write(part, transfer.skip));
    let read = if transfer.head < HEADER {
        let head = IoSliceMut::new(&mut bytes_of_mut(head)[transfer.head..]);
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

/// Runs all duplexes, whose connections are `streams`, until they are complete.
pub(super) fn run(
    me: usize,
    deadline: &Deadline,
    memory: &mut Memory,
    streams: &[&TcpStream],
    duplexes: &mut [Duplex],
    mut progress: Progress,
) -> Result<()> {
    let head = Header::new(deadline.call);
    let mut heads = vec![Header::zeroed(); duplexes.len()];
    progress(memory, duplexes);
    loop {
        let mut moved = false;
        for ((duplex, stream), peer_head) in duplexes.iter_mut().zip(streams).zip(&mut heads) {
            let rank = duplex.peer;
            let lost = |error: io::Error| Error::PeerLost {
                rank,
                reason: match error.kind() {
                    io::ErrorKind::UnexpectedEof => {
                        format!("it closed its connection during {}", *deadline.call)
                    }
                    _ => format!("its connection broke during {} ({error})", *deadline.call),
                },
            };
            let headed = duplex.recv.head == HEADER;
            moved |= push(stream, &mut duplex.send, &head, memory).map_err(lost)?;
            moved |= pull(stream, &mut duplex.recv, peer_head, memory).map_err(lost)?;
            if !headed && duplex.recv.head == HEADER && *peer_head != head {
                return Err(mismatch((me, &head), (rank, peer_head)));
            }
        }
        if moved {
            progress(memory, duplexes);
        }
        if duplexes.iter().all(Duplex::complete) {
            return Ok(());
        }
        deadline.check(|| {
            let waiting = duplexes.iter().filter(|duplex| !duplex.complete()).map(|duplex| duplex.peer);
            let mut ranks: Vec<_> = waiting.collect();
            ranks.sort();
            format!("waiting for {}", names(&ranks))
        })?;
        if !moved {
            wait(streams, duplexes);
        }
    }
}

/// Sleeps until a connection is ready, at most 50 ms.
fn wait(streams: &[&TcpStream], duplexes: &[Duplex]) {
    let mut ready: Vec<_> = streams
        .iter()
        .zip(duplexes)
        .filter_map(|(stream, duplex)| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, duplex.recv.ready());
            flags.set(PollFlags::OUT, duplex.send.ready());
            (!flags.is_empty()).then(|| PollFd::new(*stream, flags))
        })
        .collect();
    // After an error here, such as an interruption, the loop checks again.
    let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
}
