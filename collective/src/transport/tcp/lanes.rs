//! Moves the messages of one collective call: all connections of the call at once, in one
//! thread, so that no order of sending and receiving can deadlock on full socket buffers.
//!
//! A lane is one peer. What goes each way is a header and then some parts of memory, in order.
//! After every step forward a hook looks at what has come, reduces, and opens more of what may go.

use crate::{
    Error, Result,
    rendezvous::secret::retry,
    transport::{
        header::{self, HEADER},
        method::{MethodCall, mismatch},
    },
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::{
    io::{self, IoSlice, IoSliceMut, Read, Write},
    net::TcpStream,
    ops::Range,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// Pieces of memory that one system call sends.
const SLICES: usize = 8;

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
    /// Bytes of the header that have moved.
    head: usize,
    /// Parts that have moved, and bytes of the next.
    index: usize,
    skip: usize,
    /// Parts that may move for now, after the header; `None` if not even that.
    open: Option<usize>,
}

impl Flow {
    /// A header and these parts, of which the first `open` are free to go.
    pub fn new(parts: Vec<Part>, open: Option<usize>) -> Self {
        let open = open.map(|open| open.min(parts.len()));
        let mut flow = Flow { parts, open, ..Flow::default() };
        flow.settle();
        flow
    }

    /// A header and these parts, all free to go.
    pub fn free(parts: Vec<Part>) -> Self {
        let all = parts.len();
        Flow::new(parts, Some(all))
    }

    /// A header alone.
    pub fn bare() -> Self {
        Flow::free(Vec::new())
    }

    /// Nothing at all.
    pub fn absent() -> Self {
        Flow { head: HEADER, ..Flow::bare() }
    }

    /// Lets the header and the first `parts` parts go.
    pub fn open(&mut self, parts: usize) {
        self.open = Some(self.open.unwrap_or(0).max(parts.min(self.parts.len())));
    }

    /// Lets everything go.
    pub fn open_all(&mut self) {
        self.open(usize::MAX);
    }

    /// Parts that have moved.
    pub fn moved(&self) -> usize {
        self.index
    }

    pub fn complete(&self) -> bool {
        self.head == HEADER && self.index == self.parts.len()
    }

    /// Whether something may move.
    fn ready(&self) -> bool {
        self.open.is_some_and(|open| self.head < HEADER || self.index < open)
    }

    /// Counts `bytes` as moved.
    fn advance(&mut self, bytes: usize) {
        let head = bytes.min(HEADER - self.head);
        self.head += head;
        self.skip += bytes - head;
        self.settle();
    }

    /// Steps over parts that are complete, empty ones among them.
    fn settle(&mut self) {
        while let Some(part) = self.parts.get(self.index).filter(|part| part.len() <= self.skip) {
            self.skip -= part.len();
            self.index += 1;
        }
    }
}

/// What is exchanged with one peer.
pub(super) struct Lane<'a> {
    /// Rank in the group.
    pub peer: usize,
    pub stream: &'a TcpStream,
    pub send: Flow,
    pub recv: Flow,
    head: [u8; HEADER],
}

impl<'a> Lane<'a> {
    pub fn new(peer: usize, stream: &'a TcpStream, send: Flow, recv: Flow) -> Self {
        Lane { peer, stream, send, recv, head: [0; HEADER] }
    }

    pub fn complete(&self) -> bool {
        self.send.complete() && self.recv.complete()
    }

    fn push(&mut self, head: &[u8; HEADER], memory: &Memory) -> io::Result<bool> {
        let flow = &mut self.send;
        if !flow.ready() {
            return Ok(false);
        }
        let mut slices = [IoSlice::new(&[]); SLICES];
        slices[0] = IoSlice::new(&head[flow.head..]);
        let open = flow.parts[flow.index..].iter().take(flow.open.unwrap_or(0).saturating_sub(flow.index));
        let mut used = 1;
        for part in open.take(SLICES - 1) {
            slices[used] = IoSlice::new(part.read(memory, if used == 1 { flow.skip } else { 0 }));
            used += 1;
        }
        let mut stream = self.stream;
        match stream.write_vectored(&slices[..used]) {
            Ok(sent) => {
                flow.advance(sent);
                Ok(sent > 0)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn pull(&mut self, memory: &mut Memory) -> io::Result<bool> {
        let flow = &mut self.recv;
        if !flow.ready() {
            return Ok(false);
        }
        let mut stream = self.stream;
        let part = flow.parts.get(flow.index).filter(|_| flow.open > Some(flow.index));
        let body: &mut [u8] = part.map_or(&mut [], |part| part.write(memory, flow.skip));
        let read = if flow.head < HEADER {
            let head = IoSliceMut::new(&mut self.head[flow.head..]);
            stream.read_vectored(&mut [head, IoSliceMut::new(body)])
        } else {
            stream.read(body)
        };
        match read {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(got) => {
                flow.advance(got);
                Ok(true)
            }
            Err(error) if retry(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// What ends a wait early.
pub(super) struct Watch<'a> {
    pub call: MethodCall<'a>,
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
            let headed = lane.recv.head == HEADER;
            moved |= lane.push(&head, memory).map_err(lost)?;
            moved |= lane.pull(memory).map_err(lost)?;
            if !headed && lane.recv.head == HEADER && lane.head != head {
                let (theirs, method) = match header::decode(&lane.head) {
                    Some((call, method)) => (call.to_string(), Some(method)),
                    None => ("something unintelligible".into(), None),
                };
                let ours = (me, watch.call.to_string(), Some(watch.call.method));
                return Err(mismatch(ours, (lane.peer, theirs, method)));
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
            flags.set(PollFlags::IN, lane.recv.ready());
            flags.set(PollFlags::OUT, lane.send.ready());
            (!flags.is_empty()).then(|| PollFd::new(lane.stream, flags))
        })
        .collect();
    // An error here, such as an interruption, only makes the loop look again.
    let _ = poll(&mut ready, Some(&Timespec { tv_sec: 0, tv_nsec: 50_000_000 }));
}
