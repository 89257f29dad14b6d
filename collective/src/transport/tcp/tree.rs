//! The calls that run over a binomial tree.
//!
//! Counted from the root, the parent of v is v without its lowest set bit, so the ranks below v
//! are a run that begins with v: what they send up is contiguous and in rank order.

use super::{
    Tcp,
    lanes::{Flow, Part},
    reduce_slots,
};
use crate::{ReduceOp, Result, communicator::Call};
use std::ops::Range;

/// Place of one rank in the tree, in ranks counted from the root.
#[derive(Debug, PartialEq, Eq)]
struct Node {
    parent: Option<usize>,
    children: Vec<usize>,
}

/// The rank itself and all below it.
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

    /// Bytes go down as they come. A header goes up from everyone at once, so that a rank that
    /// does something else is found out by its parent.
    pub(super) fn broadcast_tree(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (parent, children) = self.relatives(call.root.unwrap_or(0));
        let bytes = buffer.len();
        let all = || vec![Part::User(0..bytes)];
        let plan = |peer| match parent == Some(peer) {
            true => (Flow::new(vec![]), Flow::new(all())),
            false if parent.is_none() => (Flow::new(all()), Flow::new(vec![])),
            false => (Flow::gated(all(), 0), Flow::new(vec![])),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, buffer, 0, peers, plan, |_, lanes| {
            let come =
                lanes.iter().find(|lane| parent == Some(lane.peer)).map_or(bytes, |lane| lane.recv.payload());
            for lane in lanes.iter_mut().filter(|lane| parent != Some(lane.peer)) {
                lane.send.open(come);
            }
        })
    }

    /// All slots of `bytes` bytes in `out` go up to rank 0, and all of `out` comes back.
    pub(super) fn gather_tree(&self, call: &Call, out: &mut [u8], bytes: usize) -> Result<()> {
        let size = self.world.size;
        let (parent, children) = self.relatives(0);
        let slots = |ranks: Range<usize>| vec![Part::User(ranks.start * bytes..ranks.end * bytes)];
        let me = self.world.rank;
        let plan = |peer| match parent == Some(peer) {
            true => (Flow::closed(slots(below(me, size))), Flow::new(slots(0..size))),
            false => (Flow::closed(slots(0..size)), Flow::new(slots(below(peer, size)))),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, out, 0, peers, plan, |_, lanes| {
            let from_children =
                lanes.iter().filter(|lane| parent != Some(lane.peer)).all(|lane| lane.recv.complete());
            let from_parent =
                lanes.iter().filter(|lane| parent == Some(lane.peer)).all(|lane| lane.recv.complete());
            for lane in lanes {
                let ready =
                    if parent == Some(lane.peer) { from_children } else { from_children && from_parent };
                if ready {
                    lane.send.open(usize::MAX / 2);
                }
            }
        })
    }

    /// Everyone's buffer goes up to rank 0, which reduces; the result comes back.
    pub(super) fn reduce_tree(&self, call: &Call, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let size = self.world.size;
        let me = self.world.rank;
        let (parent, children) = self.relatives(0);
        let bytes = buffer.len();
        let mine = below(me, size);
        // This rank's own part goes from its buffer, the others' from scratch, where slot v is
        // that of rank `me + v`.
        let slots = |ranks: Range<usize>| (ranks.start - me) * bytes..(ranks.end - me) * bytes;
        let all = || Part::User(0..bytes);
        let plan = |peer| match parent == Some(peer) {
            true => {
                let rest = Part::Scratch(slots(me + 1..mine.end));
                (Flow::closed(vec![all(), rest]), Flow::new(vec![all()]))
            }
            false => (Flow::closed(vec![all()]), Flow::new(vec![Part::Scratch(slots(below(peer, size)))])),
        };
        let peers = parent.into_iter().chain(children);
        let mut reduced = false;
        self.exchange(call, buffer, mine.len() * bytes, peers, plan, |memory, lanes| {
            let from_children =
                lanes.iter().filter(|lane| parent != Some(lane.peer)).all(|lane| lane.recv.complete());
            let from_parent =
                lanes.iter().filter(|lane| parent == Some(lane.peer)).all(|lane| lane.recv.complete());
            if parent.is_none() && from_children && !reduced {
                reduced = true;
                reduce_slots(call.dtype, op, memory, me, size, |rank| slots(rank..rank + 1), 0..bytes);
            }
            for lane in lanes {
                let ready =
                    if parent == Some(lane.peer) { from_children } else { from_children && from_parent };
                if ready {
                    lane.send.open(usize::MAX / 2);
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_has_one_parent_and_its_run_below() {
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
