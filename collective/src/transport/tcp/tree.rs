//! The calls that run over a binomial tree.
//!
//! Counted from the root, the parent of v is v without its lowest set bit, so the ranks below v
//! are a run that begins with v: what they send up is contiguous and in rank order.

use super::{
    PIECE, Tcp,
    lanes::{Flow, Lane, Part},
    reduce_into,
};
use crate::{ReduceOp, Result, transport::method::MethodCall};
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

    /// Pieces go down as they come. A header goes up from everyone at once, so that a rank that
    /// does something else is found out by its parent.
    pub(super) fn broadcast_tree(&self, call: MethodCall<'_>, buffer: &mut [u8]) -> Result<()> {
        let (parent, children) = self.relatives(call.root.unwrap_or(0));
        let bytes = buffer.len();
        let pieces = || (0..bytes).step_by(PIECE).map(|at| Part::User(at..bytes.min(at + PIECE))).collect();
        let plan = |peer| match parent == Some(peer) {
            true => (Flow::bare(), Flow::free(pieces())),
            false => (Flow::new(pieces(), Some(0)), Flow::bare()),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, buffer, 0, peers, plan, |_, lanes| {
            let come = lanes
                .iter()
                .find(|lane| parent == Some(lane.peer))
                .map_or(usize::MAX, |lane| lane.recv.moved());
            for lane in lanes.iter_mut().filter(|lane| parent != Some(lane.peer)) {
                lane.send.open(come);
            }
        })
    }

    /// All slots of `bytes` bytes in `out` go up to rank 0, and all of `out` comes back.
    pub(super) fn gather_tree(&self, call: MethodCall<'_>, out: &mut [u8], bytes: usize) -> Result<()> {
        let (me, size) = (self.world.rank, self.world.size);
        let (parent, children) = self.relatives(0);
        let slots = |ranks: Range<usize>| vec![Part::User(ranks.start * bytes..ranks.end * bytes)];
        let plan = |peer| match parent == Some(peer) {
            true => (Flow::new(slots(below(me, size)), None), Flow::free(slots(0..size))),
            false => (Flow::new(slots(0..size), None), Flow::free(slots(below(peer, size)))),
        };
        let peers = parent.into_iter().chain(children);
        self.exchange(call, out, 0, peers, plan, |_, lanes| pass_on(lanes, parent))
    }

    /// Everyone's buffer goes up to rank 0, which reduces; the result comes back.
    pub(super) fn reduce_tree(&self, call: MethodCall<'_>, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let (me, size) = (self.world.rank, self.world.size);
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
                (Flow::new(vec![all(), rest], None), Flow::free(vec![all()]))
            }
            false => {
                (Flow::new(vec![all()], None), Flow::free(vec![Part::Scratch(slots(below(peer, size)))]))
            }
        };
        let peers = parent.into_iter().chain(children);
        let mut reduced = false;
        self.exchange(call, buffer, mine.len() * bytes, peers, plan, |memory, lanes| {
            if parent.is_none() && !reduced && lanes.iter().all(|lane| lane.recv.complete()) {
                reduced = true;
                let own = memory.user.as_mut_ptr();
                let inputs = (0..size).map(|rank| match rank == me {
                    true => own.cast_const(),
                    false => memory.scratch[slots(rank..rank + 1)].as_ptr(),
                });
                reduce_into(call.dtype, op, inputs, own, bytes);
            }
            pass_on(lanes, parent);
        })
    }
}

/// Up when all children have come, down when the parent has come, too.
fn pass_on(lanes: &mut [Lane], parent: Option<usize>) {
    let come = |up: bool| {
        lanes.iter().filter(|lane| (parent == Some(lane.peer)) == up).all(|lane| lane.recv.complete())
    };
    let (from_children, from_parent) = (come(false), come(true));
    for lane in lanes {
        if from_children && (from_parent || parent == Some(lane.peer)) {
            lane.send.open_all();
        }
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
