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

mod chunks;
mod lanes;
pub(crate) mod switchboard;
mod tree;

pub(crate) use switchboard::Switchboard;

use crate::{
    DType, Error, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    reduce::reduce_raw,
    transport::method::{Method, MethodCall},
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
/// Bytes that are reduced or passed on at a time.
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

    fn slot(&self, rank: usize, bytes: usize) -> Range<usize> {
        rank * bytes..(rank + 1) * bytes
    }

    /// Connects to `peers` where that is not done, then runs the lanes that `plan` makes of them.
    /// `scratch` is the number of bytes needed beside the caller's buffer.
    fn exchange(
        &self,
        call: MethodCall<'_>,
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

    /// Everyone's buffer to everyone, or to the root alone.
    fn reduce_flat(&self, call: MethodCall<'_>, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let World { rank: me, size } = self.world;
        let bytes = buffer.len();
        let wants = |rank: usize| call.root.is_none_or(|root| root == rank);
        let slot = |peer: usize| peer * bytes..(peer + 1) * bytes;
        let plan = |peer| {
            let send = if wants(peer) { Flow::free(vec![Part::User(0..bytes)]) } else { Flow::bare() };
            let recv = if wants(me) { Flow::free(vec![Part::Scratch(slot(peer))]) } else { Flow::bare() };
            (send, recv)
        };
        let peers = self.peers().filter(|peer| wants(me) || wants(*peer));
        self.exchange(call, buffer, size * bytes, peers, plan, |memory, lanes| {
            if wants(me) && lanes.iter().all(Lane::complete) {
                let own = memory.user.as_mut_ptr();
                let inputs = (0..size).map(|rank| match rank == me {
                    true => own.cast_const(),
                    false => memory.scratch[slot(rank)].as_ptr(),
                });
                reduce_into(call.dtype, op, inputs, own, bytes);
            }
        })
    }
}

/// Reduces `bytes` bytes of every input, in rank order, into `out`, which may be one of them.
fn reduce_into(
    dtype: DType,
    op: ReduceOp,
    inputs: impl Iterator<Item = *const u8>,
    out: *mut u8,
    bytes: usize,
) {
    let inputs: Vec<_> = inputs.collect();
    // SAFETY: the callers slice their memory to `bytes` bytes for every pointer, all of it borrowed
    // for this call; inputs are different slots, and the output is one of them or apart.
    unsafe { reduce_raw(dtype, op, &inputs, &[out], bytes) }
}

fn reduction(call: &Call) -> Result<ReduceOp> {
    call.reduce.ok_or_else(|| Error::Invalid(format!("{call} does not say how to reduce")))
}

impl Communicator for Tcp {
    fn world(&self) -> World {
        self.world
    }

    fn name(&self) -> &'static str {
        "tcp"
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (call, op) = (Method::AllReduce.of(call), reduction(call)?);
        match (buffer.len() <= SMALL, self.world.size <= FEW) {
            (true, true) => self.reduce_flat(call, op, buffer),
            (true, false) => self.reduce_tree(call, op, buffer),
            (false, _) => self.reduce_chunks(call, op, buffer, |_| true),
        }
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (call, op) = (Method::Reduce.of(call), reduction(call)?);
        match buffer.len() <= SMALL {
            true => self.reduce_flat(call, op, buffer),
            false => self.reduce_chunks(call, op, buffer, |rank| call.root == Some(rank)),
        }
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.reduce_chunks(Method::ReduceScatter.of(call), reduction(call)?, buffer, |_| false)
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.broadcast_tree(Method::Broadcast.of(call), buffer)
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let call = Method::AllGather.of(call);
        let (me, bytes) = (self.world.rank, mine.len());
        out[self.slot(me, bytes)].copy_from_slice(mine);
        if self.world.size > FEW && bytes <= SMALL {
            return self.gather_tree(call, out, bytes);
        }
        let part = |rank| Flow::free(vec![Part::User(self.slot(rank, bytes))]);
        self.exchange(call, out, 0, self.peers(), |peer| (part(me), part(peer)), |_, _| {})
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let call = Method::Gather.of(call);
        let (me, bytes) = (self.world.rank, mine.len());
        match call.root {
            Some(root) if root != me => {
                let plan = |_| (Flow::free(vec![Part::User(0..bytes)]), Flow::bare());
                self.exchange(call, &mut mine.to_vec(), 0, std::iter::once(root), plan, |_, _| {})
            }
            _ => {
                out[self.slot(me, bytes)].copy_from_slice(mine);
                let plan = |peer| (Flow::bare(), Flow::free(vec![Part::User(self.slot(peer, bytes))]));
                self.exchange(call, out, 0, self.peers(), plan, |_, _| {})
            }
        }
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let call = Method::Scatter.of(call);
        let (me, bytes) = (self.world.rank, mine.len());
        match call.root {
            Some(root) if root != me => {
                let plan = |_| (Flow::bare(), Flow::free(vec![Part::User(0..bytes)]));
                self.exchange(call, mine, 0, std::iter::once(root), plan, |_, _| {})
            }
            _ => {
                mine.copy_from_slice(&all[self.slot(me, bytes)]);
                let plan = |peer| (Flow::free(vec![Part::User(self.slot(peer, bytes))]), Flow::bare());
                self.exchange(call, &mut all.to_vec(), 0, self.peers(), plan, |_, _| {})
            }
        }
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        let call = Method::Barrier.of(call);
        if self.world.size > FEW {
            return self.gather_tree(call, &mut [], 0);
        }
        self.exchange(call, &mut [], 0, self.peers(), |_| (Flow::bare(), Flow::bare()), |_, _| {})
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let plan = |_| (Flow::free(vec![Part::User(0..data.len())]), Flow::absent());
        self.exchange(call, &mut data.to_vec(), 0, std::iter::once(to), plan, |_, _| {})
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let all = 0..data.len();
        let plan = |_| (Flow::absent(), Flow::free(vec![Part::User(all.clone())]));
        self.exchange(call, data, 0, std::iter::once(from), plan, |_, _| {})
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
    }
}

#[cfg(test)]
mod tests;
