//! Moves the messages of one collective call: all connections of the call at once, in one
//! thread, so that no order of sending and receiving can deadlock on full socket buffers.
//!
//! A lane is one peer. What goes each way is a header and then some parts of memory, in order.
//! After every step forward a hook looks at what has come, reduces, and opens more of what may go.

use super::header::{self, HEADER};
use crate::{Error, Result, communicator::Call, rendezvous::secret::retry};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::TcpStream,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// The memory that a call works on.
pub(super) struct Memory<'a> {
    /// The caller's buffer.
    pub user: &'a mut [u8],
    pub scratch: &'a mut [u8],
}

/// A piece of [`Memory`].
#[derive(Clone, Debug)]
pub(super) enum Part {
    User(Range<usize>),
    Scratch(Range<usize>),
}

impl Part {
    fn len(&self) -> usize {
        match self {
            Part::User(range) | Part::Scratch(range) => range.len(),
        }
    }

    fn read<'a>(&self, memory: &'a Memory, from: usize) -> &'a [u8] {
        match self {
            Part::User(range) => &memory.user[range.start + from..range.end],
            Part::Scratch(range) => &memory.scratch[range.start + from..range.end],
        }
    }

    fn write<'a>(&self, memory: &'a mut Memory, from: usize) -> &'a mut [u8] {
        match self {
            Part::User(range) => &mut memory.user[range.start + from..range.end],
            Part::Scratch(range) => &mut memory.scratch[range.start + from..range.end],
        }
    }
}

/// One direction of a lane: the header, then the parts.
#[derive(Debug, Default)]
pub(super) struct Flow {
    parts: Vec<Part>,
    total: usize,
    done: usize,
    /// Bytes, header included, that may move for now.
    open: usize,
}

impl Flow {
    /// A header and these parts, all of it free to go.
    pub fn new(parts: Vec<Part>) -> Self {
        let total = HEADER + parts.iter().map(Part::len).sum::<usize>();
        Flow { parts, total, done: 0, open: total }
    }

    /// The same, but only so many bytes after the header may go before [`Flow::open`] says more.
    pub fn gated(parts: Vec<Part>, payload: usize) -> Self {
        let mut flow = Flow::new(parts);
        flow.open = HEADER + payload;
        flow
    }

    /// The same, but not even the header may go.
    pub fn closed(parts: Vec<Part>) -> Self {
        let mut flow = Flow::new(parts);
        flow.open = 0;
        flow
    }

    /// Lets the first `payload` bytes after the header go.
    pub fn open(&mut self, payload: usize) {
        self.open = self.open.max((HEADER + payload).min(self.total));
    }

    /// Bytes after the header that have moved.
    pub fn payload(&self) -> usize {
        self.done.saturating_sub(HEADER)
    }

    pub fn complete(&self) -> bool {
        self.done == self.total
    }

    /// The part at position `done`, and how far into it.
    fn at(&self) -> Option<(usize, usize)> {
        let mut skip = self.done.saturating_sub(HEADER);
        for (index, part) in self.parts.iter().enumerate() {
            if skip < part.len() {
                return Some((index, skip));
            }
            skip -= part.len();
        }
        None
    }
}

/// What is exchanged with one peer.
pub(super) struct Lane<'a> {
    /// Rank in the group.
    pub peer: usize,
    pub stream: &'a TcpStream,
    pub send: Flow,
    pub recv: Flow,
    pub head: [u8; HEADER],
}

impl<'a> Lane<'a> {
    pub fn new(peer: usize, stream: &'a TcpStream, send: Flow, recv: Flow) -> Self {
        Lane { peer, stream, send, recv, head: [0; HEADER] }
    }

    fn complete(&self) -> bool {
        self.send.complete() && self.recv.complete()
    }

    fn push(&mut self, head: &[u8; HEADER], memory: &Memory) -> io::Result<bool> {
        let flow = &mut self.send;
        if flow.done >= flow.open {
            return Ok(false);
        }
        let mut room = flow.open - flow.done;
        let mut slices = [IoSlice::new(&[]), IoSlice::new(&[]), IoSlice::new(&[])];
        let mut used = 0;
        if flow.done < HEADER {
            slices[0] = IoSlice::new(&head[flow.done..]);
            room -= HEADER - flow.done;
            used = 1;
        }
        let (mut index, mut skip) = flow.at().unwrap_or((flow.parts.len(), 0));
        while used < slices.len() && room > 0 && index < flow.parts.len() {
            let bytes = flow.parts[index].read(memory, skip);
            let bytes = &bytes[..bytes.len().min(room)];
            slices[used] = IoSlice::new(bytes);
            (room, used, index, skip) = (room - bytes.len(), used + 1, index + 1, 0);
        }
        let mut stream = self.stream;
        match stream.write_vectored(&slices[..used]) {
            Ok(sent) => {
                flow.done += sent;
                Ok(sent > 0)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn pull(&mut self, memory: &mut Memory) -> io::Result<bool> {
        let flow = &mut self.recv;
        if flow.done >= flow.open {
            return Ok(false);
        }
        let mut stream = self.stream;
        let at = flow.at();
        let read = if flow.done < HEADER {
            let head = IoSliceMut::new(&mut self.head[flow.done..]);
            match at {
                Some((index, skip)) => {
                    let body = IoSliceMut::new(flow.parts[index].write(memory, skip));
                    stream.read_vectored(&mut [head, body])
                }
                None => stream.read_vectored(&mut [head]),
            }
        } else {
            let Some((index, skip)) = at else { return Ok(false) };
            stream.read(flow.parts[index].write(memory, skip))
        };
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                flow.done += got;
                Ok(true)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What ends a wait early.
pub(super) struct Watch<'a> {
    pub call: &'a Call,
    pub begun: Instant,
    pub aborted: &'a AtomicBool,
}

impl Watch<'_> {
    /// An error once the deadline has passed or the group was aborted. `waiting` names the peers.
    pub fn check(&self, waiting: impl Fn() -> String) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::Aborted);
        }
        let waited = self.begun.elapsed();
        if waited < self.call.timeout {
            return Ok(());
        }
        let seconds = waited.as_secs_f64();
        Err(Error::Timeout {
            call: self.call.to_string(),
            seconds,
            absent: format!("waiting for {}", waiting()),
        })
    }
}

/// Runs all lanes to their end. `hook` is called after every step forward.
pub(super) fn run(
    me: usize,
    watch: &Watch,
    memory: &mut Memory,
    lanes: &mut [Lane],
    mut hook: impl FnMut(&mut Memory, &mut [Lane]),
) -> Result<()> {
    let head = header::encode(watch.call);
    loop {
        let mut moved = false;
        for lane in lanes.iter_mut() {
            let rank = lane.peer;
            let lost = |error: io::Error| Error::PeerLost {
                rank,
                reason: match error.kind() {
                    io::ErrorKind::UnexpectedEof => format!("it closed its connection during {}", watch.call),
                    _ => format!("its connection broke during {} ({error})", watch.call),
                },
            };
            let headed = lane.recv.done >= HEADER;
            moved |= lane.push(&head, memory).map_err(lost)?;
            moved |= lane.pull(memory).map_err(lost)?;
            if !headed && lane.recv.done >= HEADER && lane.head != head {
                let call_b = header::decode(&lane.head);
                let call_b =
                    call_b.map_or_else(|| "something unintelligible".into(), |call| call.to_string());
                let call_a = watch.call.to_string();
                return Err(Error::Mismatch { rank_a: me, call_a, rank_b: lane.peer, call_b });
            }
        }
        if moved {
            hook(memory, lanes);
        }
        if lanes.iter().all(Lane::complete) {
            return Ok(());
        }
        watch.check(|| {
            let waiting =
                lanes.iter().filter(|lane| !lane.complete()).map(|lane| format!("rank {}", lane.peer));
            waiting.collect::<Vec<_>>().join(", ")
        })?;
        if !moved {
            wait(lanes);
        }
    }
}

/// Sleeps until a connection can move, at most 50 ms.
fn wait(lanes: &[Lane]) {
    let mut ready: Vec<_> = lanes
        .iter()
        .filter_map(|lane| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, lane.recv.done < lane.recv.open);
            flags.set(PollFlags::OUT, lane.send.done < lane.send.open);
            (!flags.is_empty()).then(|| PollFd::new(lane.stream, flags))
        })
        .collect();
    // An error here, such as an interruption, only makes the loop look again.
    let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
}
