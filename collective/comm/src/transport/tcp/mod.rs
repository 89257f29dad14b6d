//! Transport over TCP, within a machine and between machines.
//!
//! Ranks that exchange data have one connection. The algorithm of a call depends on its size and on the world
//! size, which are equal on all ranks:
//!
//! - *flat*, small and few ranks: every rank sends to every other and reduces for itself. One hop.
//! - *tree*, small and many ranks: gathered to rank 0 over a binomial tree, reduced there, and
//!   broadcast back. 2·log₂ n hops, n messages.
//! - *chunks*, large: rank c owns the c-th of n chunks, receives the other ranks' parts of it, reduces them
//!   and sends the result to all ranks, overlapped piece by piece. 2·(n−1)/n of the buffer is transferred
//!   in each direction, which is the minimum, and half types are transferred as they are.
//!
//! In all three, an element is reduced in rank order, by one rank or equally by all. Groups over several machines
//! do large all-reduces by machine, in another order.

mod chunks;
pub(crate) mod connection_pool;
mod duplex;
mod machines;
mod transfer;
mod tree;

pub(crate) use connection_pool::ConnectionPool;
pub(crate) use machines::Machines;

use crate::{
    DType, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    reduce::reduce_pointers,
    rendezvous::deadline as deadline_after,
    transport::method::{Deadline, Method, MethodCall},
};
use duplex::Duplex;
use std::{
    net::{SocketAddr, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};
use transfer::{Memory, Part, Transfer};

/// Maximum size of a small message in bytes.
const SMALL: usize = 32 << 10;
/// Maximum number of ranks for which small messages are sent flat.
const FEW: usize = 8;
/// Size in bytes of the pieces that are reduced or forwarded.
const PIECE: usize = 128 << 10;

/// Connections and scratch memory of a group, used by one call at a time.
#[derive(Debug)]
struct Connections {
    streams: Vec<Option<TcpStream>>,
    scratch: Vec<u8>,
}

/// The TCP transport of one group.
#[derive(Debug)]
pub(crate) struct Tcp {
    pool: Arc<ConnectionPool>,
    group: u64,
    world: World,
    /// World rank and data address of every rank of the group.
    members: Vec<(usize, SocketAddr)>,
    connections: Mutex<Connections>,
    aborted: AtomicBool,
    /// Set if large all-reduces are done by machine.
    machines: Option<Box<Machines>>,
}

impl Tcp {
    pub fn new(
        pool: Arc<ConnectionPool>,
        group: u64,
        rank: usize,
        members: Vec<(usize, SocketAddr)>,
    ) -> Self {
        let size = members.len();
        let connections = Connections { streams: (0..size).map(|_| None).collect(), scratch: Vec::new() };
        Tcp {
            pool,
            group,
            world: World { rank, size },
            members,
            connections: Mutex::new(connections),
            aborted: AtomicBool::new(false),
            machines: None,
        }
    }

    /// Does large all-reduces by machine.
    pub fn with_machines(self, machines: Machines) -> Self {
        Tcp { machines: Some(Box::new(machines)), ..self }
    }

    fn peers(&self) -> impl Iterator<Item = usize> + Clone + use<> {
        let World { rank, size } = self.world;
        (0..size).filter(move |peer| *peer != rank)
    }

    fn slot(&self, rank: usize, bytes: usize) -> Range<usize> {
        rank * bytes..(rank + 1) * bytes
    }

    /// Connects to `peers` where necessary, then runs the transfers that `plan` returns for each.
    ///
    /// `scratch` is the number of bytes needed in addition to the caller's buffer.
    fn exchange(
        &self,
        call: MethodCall<'_>,
        user: &mut [u8],
        scratch: usize,
        peers: impl Iterator<Item = usize> + Clone,
        mut plan: impl FnMut(usize) -> (Transfer, Transfer),
        mut hook: impl FnMut(&mut Memory, &mut [Duplex]),
    ) -> Result<()> {
        let deadline = Deadline { call, begun: Instant::now(), aborted: &self.aborted };
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let Connections { streams, scratch: spare } = &mut *connections;
        // Dial first, so that peers that wait for this rank's connection are not delayed by its own waits.
        for peer in peers.clone() {
            if streams[peer].is_none() && self.dials(peer) {
                streams[peer] = Some(self.connect(peer, &deadline)?);
            }
        }
        for peer in peers.clone() {
            if streams[peer].is_none() {
                streams[peer] = Some(self.connect(peer, &deadline)?);
            }
        }
        if spare.len() < scratch {
            spare.resize(scratch, 0);
        }
        let mut memory = Memory { user, scratch: &mut spare[..scratch] };
        let mut duplexes = Vec::new();
        for peer in peers {
            if let Some(stream) = &streams[peer] {
                let (send, recv) = plan(peer);
                duplexes.push(Duplex::new(peer, stream, send, recv));
            }
        }
        hook(&mut memory, &mut duplexes);
        duplex::run(self.world.rank, &deadline, &mut memory, &mut duplexes, hook)
    }

    /// Transfers `bytes` bytes of every other rank to the root, or from the root to them unless `up`.
    ///
    /// `buffer` of the root has the bytes of all ranks.
    fn exchange_with_root(
        &self,
        call: MethodCall<'_>,
        root: usize,
        bytes: usize,
        up: bool,
        buffer: &mut [u8],
    ) -> Result<()> {
        let here = self.world.rank == root;
        let plan = |peer| {
            let range = if here { self.slot(peer, bytes) } else { 0..bytes };
            let data = Transfer::free(vec![Part::User(range)]);
            if here == up { (Transfer::bare(), data) } else { (data, Transfer::bare()) }
        };
        let peers = self.peers().filter(|peer| here || *peer == root);
        self.exchange(call, buffer, 0, peers, plan, |_, _| {})
    }

    fn dials(&self, peer: usize) -> bool {
        self.members[self.world.rank].0 > self.members[peer].0
    }

    fn connect(&self, peer: usize, deadline: &Deadline) -> Result<TcpStream> {
        let (rank, address) = self.members[peer];
        let until = deadline_after(deadline.call.timeout.saturating_sub(deadline.begun.elapsed()));
        self.pool.connect(self.group, rank, address, until, || {
            deadline.check(|| format!("waiting for rank {peer}"))
        })
    }

    /// Sends every rank's buffer to every rank, or to the root only.
    fn reduce_flat(&self, call: MethodCall<'_>, op: ReduceOp, buffer: &mut [u8]) -> Result<()> {
        let World { rank: me, size } = self.world;
        let bytes = buffer.len();
        let wants = |rank: usize| call.root.is_none_or(|root| root == rank);
        let slot = |peer: usize| peer * bytes..(peer + 1) * bytes;
        let plan = |peer| {
            let send =
                if wants(peer) { Transfer::free(vec![Part::User(0..bytes)]) } else { Transfer::bare() };
            let recv =
                if wants(me) { Transfer::free(vec![Part::Scratch(slot(peer))]) } else { Transfer::bare() };
            (send, recv)
        };
        let peers = self.peers().filter(|peer| wants(me) || wants(*peer));
        self.exchange(call, buffer, size * bytes, peers, plan, |memory, duplexes| {
            if wants(me) && duplexes.iter().all(Duplex::complete) {
                let own = memory.user.as_mut_ptr();
                let input = |rank| match rank == me {
                    true => own.cast_const(),
                    false => memory.scratch[slot(rank)].as_ptr(),
                };
                reduce_into(call.dtype, op, size, &input, own, bytes);
            }
        })
    }
}

/// Reduces `bytes` bytes of the inputs of `size` ranks, in rank order, into `out`, which may be one of them.
fn reduce_into(
    dtype: DType,
    op: ReduceOp,
    size: usize,
    input: &dyn Fn(usize) -> *const u8,
    out: *mut u8,
    bytes: usize,
) {
    // SAFETY: the callers slice their memory to `bytes` bytes for every pointer, all of it borrowed
    // for this call; inputs are different slots, and the output is one of them or apart.
    unsafe { reduce_pointers(dtype, op, size, input, &[out], bytes) }
}

impl Communicator for Tcp {
    fn world(&self) -> World {
        self.world
    }

    fn name(&self) -> &'static str {
        match &self.machines {
            Some(machines) if machines.local.name() != "tcp" => "shm+tcp",
            Some(_) | None => "tcp",
        }
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let op = call.reduction()?;
        if let Some(machines) = self.machines.as_ref().filter(|machines| machines.suit(call, buffer.len())) {
            return machines.all_reduce(call, op, self.world.size, buffer);
        }
        let call = Method::AllReduce.of(call);
        match (buffer.len() <= SMALL, self.world.size <= FEW) {
            (true, true) => self.reduce_flat(call, op, buffer),
            (true, false) => self.reduce_tree(call, op, buffer),
            (false, _) => self.reduce_chunks(call, op, buffer, |_| true),
        }
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (call, op) = (Method::Reduce.of(call), call.reduction()?);
        match buffer.len() <= SMALL {
            true => self.reduce_flat(call, op, buffer),
            false => self.reduce_chunks(call, op, buffer, |rank| call.root == Some(rank)),
        }
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.reduce_chunks(Method::ReduceScatter.of(call), call.reduction()?, buffer, |_| false)
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
        let part = |rank| Transfer::free(vec![Part::User(self.slot(rank, bytes))]);
        self.exchange(call, out, 0, self.peers(), |peer| (part(me), part(peer)), |_, _| {})
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let (call, me, bytes) = (Method::Gather.of(call), self.world.rank, mine.len());
        let root = call.root.unwrap_or(me);
        if root != me {
            return self.exchange_with_root(call, root, bytes, true, &mut mine.to_vec());
        }
        out[self.slot(me, bytes)].copy_from_slice(mine);
        self.exchange_with_root(call, root, bytes, true, out)
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let (call, me, bytes) = (Method::Scatter.of(call), self.world.rank, mine.len());
        let root = call.root.unwrap_or(me);
        if root != me {
            return self.exchange_with_root(call, root, bytes, false, mine);
        }
        mine.copy_from_slice(&all[self.slot(me, bytes)]);
        self.exchange_with_root(call, root, bytes, false, &mut all.to_vec())
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        let call = Method::Barrier.of(call);
        if self.world.size > FEW {
            return self.gather_tree(call, &mut [], 0);
        }
        self.exchange(call, &mut [], 0, self.peers(), |_| (Transfer::bare(), Transfer::bare()), |_, _| {})
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let plan = |_| (Transfer::free(vec![Part::User(0..data.len())]), Transfer::absent());
        self.exchange(call, &mut data.to_vec(), 0, std::iter::once(to), plan, |_, _| {})
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        let call = Method::Message.of(call);
        let all = 0..data.len();
        let plan = |_| (Transfer::absent(), Transfer::free(vec![Part::User(all.clone())]));
        self.exchange(call, data, 0, std::iter::once(from), plan, |_, _| {})
    }

    fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        if let Some(machines) = &self.machines {
            machines.abort();
        }
    }
}

#[cfg(test)]
mod tests;
