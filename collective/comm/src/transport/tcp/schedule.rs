//! What one rank sends and receives during a call, in which order, and what it waits for.
//!
//! A [`Schedule`] needs no connections and no memory. The transport executes it over sockets, and the example
//! `simulate_all_reduce` in virtual time.

pub use crate::transport::header::HEADER;

use crate::{communicator::World, reduce::Reduction};
use std::ops::Range;

/// Size in bytes of the pieces of chunks and of a tree's broadcast.
pub const PIECE: usize = 128 << 10;

/// A range of a call's memory.
#[derive(Clone, Debug)]
pub enum Part {
    User(Range<usize>),
    Scratch(Range<usize>),
}

impl Part {
    pub fn bytes(&self) -> usize {
        match self {
            Part::User(range) | Part::Scratch(range) => range.len(),
        }
    }
}

/// One direction of a duplex: the header, then the parts.
#[derive(Debug, Default)]
pub struct Transfer {
    pub parts: Vec<Part>,
    /// Transferred bytes of the header.
    pub head: usize,
    /// Transferred parts, and transferred bytes of the next.
    pub moved: usize,
    pub skip: usize,
    /// Number of parts that may be transferred, after the header; `None` if the header may not.
    pub open: Option<usize>,
}

impl Transfer {
    /// A header and `parts`, of which the first `open` may be transferred.
    pub fn new(parts: Vec<Part>, open: Option<usize>) -> Self {
        let open = open.map(|open| open.min(parts.len()));
        let mut transfer = Transfer { parts, open, ..Transfer::default() };
        transfer.skip_complete();
        transfer
    }

    /// A header and `parts`, all of which may be transferred.
    pub fn free(parts: Vec<Part>) -> Self {
        let all = parts.len();
        Transfer::new(parts, Some(all))
    }

    /// A header without parts.
    pub fn bare() -> Self {
        Transfer::free(Vec::new())
    }

    /// Nothing, not even a header.
    pub fn absent() -> Self {
        Transfer { head: HEADER, ..Transfer::bare() }
    }

    /// Allows the header and the first `parts` parts.
    pub fn open(&mut self, parts: usize) {
        self.open = Some(self.open.unwrap_or(0).max(parts.min(self.parts.len())));
    }

    pub fn complete(&self) -> bool {
        self.head == HEADER && self.moved == self.parts.len()
    }

    /// Whether data may be transferred.
    pub fn ready(&self) -> bool {
        self.open.is_some_and(|open| self.head < HEADER || self.moved < open)
    }

    /// Counts `bytes` as transferred.
    pub fn advance(&mut self, bytes: usize) {
        let head = bytes.min(HEADER - self.head);
        self.head += head;
        self.skip += bytes - head;
        self.skip_complete();
    }

    /// Skips complete parts, including empty ones.
    fn skip_complete(&mut self) {
        while let Some(part) = self.parts.get(self.moved).filter(|part| part.bytes() <= self.skip) {
            self.skip -= part.bytes();
            self.moved += 1;
        }
    }
}

/// Both directions between this rank and one peer during a call.
#[derive(Debug)]
pub struct Duplex {
    /// Rank in the group.
    pub peer: usize,
    pub send: Transfer,
    pub recv: Transfer,
}

impl Duplex {
    pub fn complete(&self) -> bool {
        self.send.complete() && self.recv.complete()
    }
}

/// Called at the beginning and after every progress: reduces received data and allows further transfers.
pub type Progress<'a> = Box<dyn FnMut(&mut dyn Arithmetic, &mut [Duplex]) + 'a>;

/// One rank's part of a call.
pub struct Schedule<'a> {
    /// Bytes needed in addition to the caller's buffer.
    pub scratch: usize,
    pub duplexes: Vec<Duplex>,
    pub progress: Progress<'a>,
}

impl<'a> Schedule<'a> {
    /// Transfers with each of `peers` what `plan` returns for it: what is sent and what is received.
    pub fn new(
        scratch: usize,
        peers: impl IntoIterator<Item = usize>,
        mut plan: impl FnMut(usize) -> (Transfer, Transfer),
        progress: impl FnMut(&mut dyn Arithmetic, &mut [Duplex]) + 'a,
    ) -> Self {
        let duplex = |peer| {
            let (send, recv) = plan(peer);
            Duplex { peer, send, recv }
        };
        Schedule { scratch, duplexes: peers.into_iter().map(duplex).collect(), progress: Box::new(progress) }
    }

    /// Transfers that wait for nothing.
    pub fn free(
        peers: impl IntoIterator<Item = usize>,
        plan: impl FnMut(usize) -> (Transfer, Transfer),
    ) -> Self {
        Schedule::new(0, peers, plan, |_, _| {})
    }
}

/// All ranks but this one, from the next one on, so that not all ranks begin with the same peer.
pub fn peers(world: World) -> impl Iterator<Item = usize> {
    (1..world.size).map(move |step| (world.rank + step) % world.size)
}

/// The computation of a schedule on parts of its memory.
pub trait Arithmetic {
    /// Reduces the parts of all ranks into `out`, which may be one of them.
    fn reduce(&mut self, reduction: Reduction, input: &dyn Fn(usize) -> Part, out: Part);
    /// Folds this rank's elements at `own` in the caller's buffer into the partials at `partials` in scratch:
    /// `reduce::fold_own`.
    fn fold(&mut self, reduction: Reduction, own: Range<usize>, partials: Range<usize>);
}
