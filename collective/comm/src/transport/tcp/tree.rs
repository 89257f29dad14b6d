//! Calls over a binomial tree.
//!
//! Counted from the root, the parent of v is v without its lowest set bit. The ranks below v are therefore a
//! contiguous range that begins with v, in rank order.

use super::{
    PIECE, Tcp,
    duplex::Duplex,
    reduce_into,
    transfer::{Part, Transfer},
};
use crate::{ReduceOp, Result, transport::method::MethodCall};
use std::ops::Range;

/// A rank's place in the tree, in ranks counted from the root.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    parent: Option<usize>,
    children: Vec<usize>,
}

/// The rank and all ranks below it.
fn below(v: usize, size: usize) -> Range<usize> {
    if v == 0 { 0..size } else { v..size.min(v + (1 << v.trailing_zeros())) }
}

fn node(v: usize, size: usize) -> Node {
    let bits = if v == 0 { usize::BITS } else { v.trailing_zeros() };
    let children = (0..bits).map_while(|bit| 1usize.checked_shl(bit).map(|step| v + step));
    Node {
        parent: (v != 0).then(|| v & (v - 1)),
        children: children.take_while(|child| *child < size).collect(),
    }
}

impl Tcp {
    /// The peers of a node, as ranks of the group.
    fn relatives(&self, root: usize) -> (Option<usize>, Vec<usize>) {
        let size = self.world.size;
        let node = node((self.world.rank + size - root) % size, size);
        let rank = |v: usize| (v + root) % size;
        (node.parent.map(rank), node.children.into_iter().map(rank).collect())
    }

    /// Forwards pieces down the tree as they arrive.
    ///
    /// Every rank sends a header up at once, so that its parent detects a different call.
    pub(super) fn broadcast_tree(&self, call: MethodCall<'_>, buffer: &mut [u8]) -> Result<()> {
        let (parent, children) = self.relatives(call.root.unwrap_or(0));
        let bytes = buffer.len();
        let pieces = || (0..bytes).step_by(PIECE).map(|at| Part::User(at..bytes.min(at + PIECE))).collect();
        let plan = |peer| match parent == Some(peer) {
            true => (Transfer::bare(), Transfer::free(pieces())),
            false => (Transfer::new(pieces(), Some(0)), Transfer::bare()),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, buffer, 0, peers, plan, |_, duplexes| {
            let come = duplexes
                .iter()
                .find(|duplex| parent == Some(duplex.peer))
                .map_or(usize::MAX, |duplex| duplex.recv.moved());
            for duplex in duplexes.iter_mut().filter(|duplex| parent != Some(duplex.peer)) {
                duplex.send.open(come);
            }
        })
    }

    /// Gathers all slots of `bytes` bytes in `out` at rank 0, and broadcasts `out`.
    pub(super) fn gather_tree(&self, call: MethodCall<'_>, out: &mut [u8], bytes: usize) -> Result<()> {
        let (me, size) = (self.world.rank, self.world.size);
        let (parent, children) = self.relatives(0);
        let slots = |ranks: Range<usize>| vec![Part::User(ranks.start * bytes..ranks.end * bytes)];
        let plan = |peer| match parent == Some(peer) {
            true => (Transfer::new(slots(below(me, size)), None), Transfer::free(slots(0..size))),
            false => (Transfer::new(slots(0..size), None), Transfer::free(slots(below(peer, size)))),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, out, 0, peers, plan, |_, duplexes| pass_on(duplexes, parent))
    }

    /// Gathers the buffers at rank 0, which reduces them, and broadcasts the result.
    pub(super) fn reduce_tree(&self, call: MethodCall<'_>, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let (me, size) = (self.world.rank, self.world.size);
        let (parent, children) = self.relatives(0);
        let bytes = buffer.len();
        let mine = below(me, size);
        // This rank's part is sent from its buffer, the others' from scratch, where slot v is that of rank
        // `me + v`.
        let slots = |ranks: Range<usize>| (ranks.start - me) * bytes..(ranks.end - me) * bytes;
        let all = || Part::User(0..bytes);
        let plan = |peer| match parent == Some(peer) {
            true => {
                let rest = Part::Scratch(slots(me + 1..mine.end));
                (Transfer::new(vec![all(), rest], None), Transfer::free(vec![all()]))
            }
            false => (
                Transfer::new(vec![all()], None),
                Transfer::free(vec![Part::Scratch(slots(below(peer, size)))]),
            ),
        };
        let peers = parent.into_iter().chain(children);
        let mut reduced = false;
        self.exchange(call, buffer, mine.len() * bytes, peers, plan, |memory, duplexes| {
            if parent.is_none() && !reduced && duplexes.iter().all(|duplex| duplex.recv.complete()) {
                reduced = true;
                let own = memory.user.as_mut_ptr();
                let input = |rank| match rank == me {
                    true => own.cast_const(),
                    false => memory.scratch[slots(rank..rank + 1)].as_ptr(),
                };
                reduce_into(call.dtype, op, size, &input, own, bytes);
            }
            pass_on(duplexes, parent);
        })
    }
}

/// Allows sending to the parent once all children's data has arrived, and to the children once the parent's
/// has, too.
fn pass_on(duplexes: &mut [Duplex], parent: Option<usize>) {
    let come = |up: bool| {
        duplexes
            .iter()
            .filter(|duplex| (parent == Some(duplex.peer)) == up)
            .all(|duplex| duplex.recv.complete())
    };
    let (from_children, from_parent) = (come(false), come(true));
    for duplex in duplexes {
        if from_children && (from_parent || parent == Some(duplex.peer)) {
            duplex.send.open_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_parent_and_a_contiguous_subtree() {
        for size in 1..70 {
            let mut reached = vec![0; size];
            for v in 0..size {
                let node = node(v, size);
                let mut run: Vec<_> = node.children.iter().flat_map(|child| below(*child, size)).collect();
                run.push(v);
                run.sort();
                assert_eq!(run, below(v, size).collect::<Vec<_>>());
                for child in node.children {
                    reached[child] += 1;
                    assert_eq!(super::node(child, size).parent, Some(v));
                }
            }
            assert!(reached.iter().enumerate().all(|(v, times)| *times == usize::from(v != 0)));
        }
    }
}
