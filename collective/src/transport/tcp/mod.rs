//! Collectives over TCP.
//!
//! Every pair of ranks that need each other has one connection. Which way a call takes depends on
//! its bytes and on the world, both the same on all ranks:
//!
//! - *flat*, small and few ranks: everyone sends to everyone and reduces for itself. One hop.
//! - *tree*, small and many ranks: gathered to rank 0 over a binomial tree, reduced there, and
//!   broadcast back. 2·log₂ n hops, n messages.
//! - *chunks*, large: rank c owns the c-th of n chunks, receives everyone's part of it, reduces it
//!   and sends the result to everyone, all overlapped piece by piece. 2·(n−1)/n of the buffer goes
//!   each way, which no algorithm can undercut, and half types travel as they are.
//!
//! In all three an element is reduced by one rank, or by all alike, in rank order.

mod header;
mod lanes;
mod switchboard;
mod tree;

pub(crate) use switchboard::Switchboard;

use crate::{
    DType, Error, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    reduce::reduce_raw,
};
use lanes::{Flow, Lane, Memory, Part, Watch};
use std::{
    net::{SocketAddr, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

/// Up to this many bytes a message counts as small.
const SMALL: usize = 32 << 10;
/// Up to this many ranks, small messages go flat.
const FEW: usize = 8;
/// Bytes of a chunk that are reduced and passed on at a time.
const PIECE: usize = 128 << 10;

/// What a call needs besides its arguments; one call at a time has it.
#[derive(Debug)]
struct Equipment {
    streams: Vec<Option<TcpStream>>,
    scratch: Vec<u8>,
}

/// The TCP transport of one group.
#[derive(Debug)]
pub(crate) struct Tcp {
    switchboard: Arc<Switchboard>,
    group: u64,
    world: World,
    /// World rank and data address of every rank of the group.
    members: Vec<(usize, SocketAddr)>,
    equipment: Mutex<Equipment>,
    aborted: AtomicBool,
}

impl Tcp {
    pub fn new(
        switchboard: Arc<Switchboard>,
        group: u64,
        rank: usize,
        members: Vec<(usize, SocketAddr)>,
    ) -> Self {
        let size = members.len();
        let equipment = Equipment { streams: (0..size).map(|_| None).collect(), scratch: Vec::new() };
        Tcp {
            switchboard,
            group,
            world: World { rank, size },
            members,
            equipment: Mutex::new(equipment),
            aborted: AtomicBool::new(false),
        }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let World { rank, size } = self.world;
        (0..size).filter(move |peer| *peer != rank)
    }

    /// Connects to `peers` where that is not done, then runs the lanes that `plan` makes of them.
    /// `scratch` is the number of bytes needed beside the caller's buffer.
    fn exchange(
        &self,
        call: &Call,
        user: &mut [u8],
        scratch: usize,
        peers: impl Iterator<Item = usize> + Clone,
        mut plan: impl FnMut(usize) -> (Flow, Flow),
        mut hook: impl FnMut(&mut Memory, &mut [Lane]),
    ) -> Result<()> {
        let watch = Watch { call, begun: Instant::now(), aborted: &self.aborted };
        let mut equipment = self.equipment.lock().unwrap_or_else(PoisonError::into_inner);
        let Equipment { streams, scratch: spare } = &mut *equipment;
        // Dial first: whoever waits for this rank's call should not wait for its waiting.
        for peer in peers.clone() {
            if streams[peer].is_none() && self.dials(peer) {
                streams[peer] = Some(self.connect(peer, &watch)?);
            }
        }
        for peer in peers.clone() {
            if streams[peer].is_none() {
                streams[peer] = Some(self.connect(peer, &watch)?);
            }
        }
        if spare.len() < scratch {
            spare.resize(scratch, 0);
        }
        let mut memory = Memory { user, scratch: &mut spare[..scratch] };
        let mut lanes = Vec::new();
        for peer in peers {
            if let Some(stream) = &streams[peer] {
                let (send, recv) = plan(peer);
                lanes.push(Lane::new(peer, stream, send, recv));
            }
        }
        hook(&mut memory, &mut lanes);
        lanes::run(self.world.rank, &watch, &mut memory, &mut lanes, hook)
    }

    fn dials(&self, peer: usize) -> bool {
        self.members[self.world.rank].0 > self.members[peer].0
    }

    fn connect(&self, peer: usize, watch: &Watch) -> Result<TcpStream> {
        let (rank, address) = self.members[peer];
        self.switchboard.connect(self.group, rank, address, || watch.check(|| format!("rank {peer}")))
    }

    fn reduce_flat(&self, call: &Call, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let World { rank: me, size } = self.world;
        let bytes = buffer.len();
        let slot = |peer: usize| peer * bytes..(peer + 1) * bytes;
        let plan = |peer| (Flow::new(vec![Part::User(0..bytes)]), Flow::new(vec![Part::Scratch(slot(peer))]));
        self.exchange(call, buffer, size * bytes, self.peers(), plan, |memory, lanes| {
            if lanes.iter().all(|lane| lane.recv.complete() && lane.send.complete()) {
                reduce_slots(call.dtype, op, memory, me, size, slot, 0..bytes);
            }
        })
    }

    fn reduce_chunks(&self, call: &Call, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let World { rank: me, size } = self.world;
        let width = call.dtype.size();
        let chunk = |rank: usize| rank * call.count / size * width..(rank + 1) * call.count / size * width;
        let mine = chunk(me);
        let len = mine.len();
        let slot = |peer: usize| peer * len..(peer + 1) * len;
        let plan = |peer| {
            let part = chunk(peer).len();
            let send = Flow::gated(vec![Part::User(chunk(peer)), Part::User(mine.clone())], part);
            (send, Flow::new(vec![Part::Scratch(slot(peer)), Part::User(chunk(peer))]))
        };
        let mut reduced = 0;
        self.exchange(call, buffer, size * len, self.peers(), plan, |memory, lanes| {
            let come = lanes.iter().map(|lane| lane.recv.payload().min(len)).min().unwrap_or(len);
            let come = if come == len { len } else { come / width * width };
            if come - reduced < PIECE && come < len || come == reduced {
                return;
            }
            let piece = reduced..come;
            let from = |peer: usize| peer * len + piece.start..peer * len + piece.end;
            let to = mine.start + piece.start..mine.start + piece.end;
            reduce_slots(call.dtype, op, memory, me, size, from, to);
            reduced = come;
            for lane in lanes {
                lane.send.open(chunk(lane.peer).len() + reduced);
            }
        })
    }
}

/// Reduces everyone's slot in scratch and this rank's own `mine` in the caller's buffer, in rank
/// order, into `mine`.
fn reduce_slots(
    dtype: DType,
    op: ReduceOp,
    memory: &mut Memory,
    me: usize,
    size: usize,
    slot: impl Fn(usize) -> Range<usize>,
    mine: Range<usize>,
) {
    let own = memory.user[mine.clone()].as_mut_ptr();
    let input = |rank| if rank == me { own.cast_const() } else { memory.scratch[slot(rank)].as_ptr() };
    let inputs: Vec<_> = (0..size).map(input).collect();
    // SAFETY: each pointer is to `mine.len()` bytes, which slicing has checked; `own` is the only
    // output and coincides with one input; nobody else has this memory during the call.
    unsafe { reduce_raw(dtype, op, &inputs, &[own], mine.len()) }
}

impl Communicator for Tcp {
    fn world(&self) -> World {
        self.world
    }

    fn name(&self) -> &'static str {
        "tcp"
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let op = call.reduce.ok_or_else(|| Error::Invalid(format!("{call} does not say how to reduce")))?;
        match (buffer.len() <= SMALL, self.world.size <= FEW) {
            (true, true) => self.reduce_flat(call, op, buffer),
            (true, false) => self.reduce_tree(call, op, buffer),
            (false, _) => self.reduce_chunks(call, op, buffer),
        }
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.broadcast_tree(call, buffer)
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let (me, bytes) = (self.world.rank, mine.len());
        let slot = |rank: usize| rank * bytes..(rank + 1) * bytes;
        out[slot(me)].copy_from_slice(mine);
        if self.world.size > FEW && bytes <= SMALL {
            return self.gather_tree(call, out, bytes);
        }
        let plan = |peer| (Flow::new(vec![Part::User(slot(me))]), Flow::new(vec![Part::User(slot(peer))]));
        self.exchange(call, out, 0, self.peers(), plan, |_, _| {})
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        if self.world.size > FEW {
            return self.gather_tree(call, &mut [], 0);
        }
        let plan = |_| (Flow::new(vec![]), Flow::new(vec![]));
        self.exchange(call, &mut [], 0, self.peers(), plan, |_, _| {})
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}
