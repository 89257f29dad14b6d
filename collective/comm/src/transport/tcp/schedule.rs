//! What one rank sends and receives during a call, in which order, and what it waits for.
//!
//! A [`Schedule`] needs no connections and no memory. The transport executes it over sockets, and the
//! simulation in virtual time.

use super::transfer::{Part, Transfer};
use crate::{communicator::World, reduce::Reduction};
use std::ops::Range;

/// Size in bytes of the pieces of chunks and of a tree's broadcast.
pub(super) const PIECE: usize = 128 << 10;

/// Both directions between this rank and one peer during a call.
#[derive(Debug)]
pub(super) struct Duplex {
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
pub(super) type Progress<'a> = Box<dyn FnMut(&mut dyn Arithmetic, &mut [Duplex]) + 'a>;

/// One rank's part of a call.
pub(super) struct Schedule<'a> {
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
pub(super) fn peers(world: World) -> impl Iterator<Item = usize> {
    (1..world.size).map(move |step| (world.rank + step) % world.size)
}

/// The computation of a schedule on parts of its memory.
pub(super) trait Arithmetic {
    /// Reduces the parts of all ranks into `out`, which may be one of them.
    fn reduce(&mut self, reduction: Reduction, input: &dyn Fn(usize) -> Part, out: Part);
    /// Folds this rank's elements at `own` in the caller's buffer into the partials at `partials` in scratch:
    /// [`fold_own`](crate::reduce::fold_own).
    fn fold(&mut self, reduction: Reduction, own: Range<usize>, partials: Range<usize>);
}
