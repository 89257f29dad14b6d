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
//! - *chain*, large and very many ranks: reduced piece by piece from rank 0 to the last, and sent back. Two
//!   connections per rank, where chunks need n − 1, and 2·(n−1) hops.
//!
//! In all four, an element is reduced in rank order, by one rank or equally by all. Groups over several machines
//! do large all-reduces by machine, in another order.

mod algorithm;
#[doc(hidden)]
pub mod chain;
mod chunks;
pub(crate) mod connection_pool;
mod duplex;
mod flat;
mod machines;
mod ring;
#[doc(hidden)]
pub mod schedule;
mod tree;

pub use algorithm::Algorithm;
pub(crate) use connection_pool::ConnectionPool;
pub(crate) use machines::Machines;

use crate::{
    Result,
    communicator::{Call, Communicator, World},
    reduce::Reduction,
    rendezvous::deadline as deadline_after,
    sync::lock,
    transport::method::{Deadline, Method, MethodCall},
};
use algorithm::{FEW, PAIRED, SMALL};
use duplex::Memory;
use schedule::{Part, Schedule, Transfer, peers};
use std::{
    net::{SocketAddr, TcpStream},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

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
    /// Set if all-reduces do not choose by size.
    algorithm: Option<Algorithm>,
    /// Largest number of ranks of which each is connected to all others.
    paired: usize,
}

impl Tcp {
    pub fn new(
        pool: Arc<ConnectionPool>,
        group: u64,
        rank: usize,
        members: Vec<(usize, SocketAddr)>,
        algorithm: Option<Algorithm>,
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
            algorithm,
            paired: PAIRED,
        }
    }

    /// Does large all-reduces by machine.
    pub fn with_machines(self, machines: Machines) -> Self {
        Tcp { machines: Some(Box::new(machines)), ..self }
    }

    fn slot(&self, rank: usize, bytes: usize) -> Range<usize> {
        rank * bytes..(rank + 1) * bytes
    }

    /// Connects to the peers of `schedule` where necessary, then executes it.
    fn exchange(&self, call: MethodCall<'_>, user: &mut [u8], schedule: Schedule<'_>) -> Result<()> {
        let deadline = Deadline::new(call, &self.aborted);
        let Schedule { scratch, mut duplexes, progress } = schedule;
        let mut connections = lock(&self.connections);
        let Connections { streams, scratch: spare } = &mut *connections;
        // Dial first, so that peers that wait for this rank's connection are not delayed by its own waits.
        let (dialled, awaited): (Vec<_>, Vec<_>) = duplexes
            .iter()
            .map(|duplex| duplex.peer)
            .filter(|peer| streams[*peer].is_none())
            .partition(|peer| self.dials(*peer));
        for peer in dialled.into_iter().chain(awaited) {
            streams[peer] = Some(self.connect(peer, &deadline)?);
        }
        if spare.len() < scratch {
            spare.resize(scratch, 0);
        }
        let mut memory = Memory { user, scratch: &mut spare[..scratch] };
        let streams: Vec<_> = duplexes.iter().filter_map(|duplex| streams[duplex.peer].as_ref()).collect();
        duplex::run(self.world.rank, &deadline, &mut memory, &streams, &mut duplexes, progress)
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
        let peers = peers(self.world).filter(|peer| here || *peer == root);
        self.exchange(call, buffer, Schedule::free(peers, plan))
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

    /// All-reduces without regard to machines.
    fn reduce_everywhere(&self, call: MethodCall<'_>, buffer: &mut [u8]) -> Result<()> {
        let chosen = self.algorithm.unwrap_or_else(|| Algorithm::choose(self.world.size, buffer.len()));
        let schedule = chosen.schedule(Reduction::of(&call, self.world)?, buffer.len());
        self.exchange(call, buffer, schedule)
    }
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
        let reduction = Reduction::of(call, self.world)?;
        if let Some(machines) = self.machines.as_ref().filter(|machines| machines.suit(call, buffer.len())) {
            return machines.all_reduce(call, reduction, buffer);
        }
        self.reduce_everywhere(Method::AllReduce.of(call), buffer)
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let (call, bytes, root) = (Method::Reduce.of(call), buffer.len(), call.root);
        let reduction = Reduction::of(&call, self.world)?;
        if self.world.size > self.paired {
            return match root == Some(self.world.rank) {
                true => self.reduce_everywhere(call, buffer),
                false => self.reduce_everywhere(call, &mut buffer.to_vec()),
            };
        }
        let schedule = match bytes <= SMALL {
            true => flat::reduce(reduction, bytes, root),
            false => chunks::reduce(reduction, bytes, |rank| root == Some(rank)),
        };
        self.exchange(call, buffer, schedule)
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let call = Method::ReduceScatter.of(call);
        if self.world.size > self.paired {
            let mut whole = buffer.to_vec();
            self.reduce_everywhere(call, &mut whole)?;
            let part = self.world.part(buffer.len());
            buffer[part.clone()].copy_from_slice(&whole[part]);
            return Ok(());
        }
        let schedule = chunks::reduce(Reduction::of(&call, self.world)?, buffer.len(), |_| false);
        self.exchange(call, buffer, schedule)
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let schedule = tree::broadcast(self.world, call.root.unwrap_or(0), buffer.len());
        self.exchange(Method::Broadcast.of(call), buffer, schedule)
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        let (me, bytes) = (self.world.rank, mine.len());
        out[self.slot(me, bytes)].copy_from_slice(mine);
        let part = |rank| Transfer::free(vec![Part::User(self.slot(rank, bytes))]);
        let schedule = match self.world.size {
            size if size > FEW && bytes <= SMALL => tree::gather(self.world, bytes),
            size if size > self.paired => ring::gather(self.world, bytes),
            _ => Schedule::free(peers(self.world), |peer| (part(me), part(peer))),
        };
        self.exchange(Method::AllGather.of(call), out, schedule)
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
        let schedule = match self.world.size > FEW {
            true => tree::gather(self.world, 0),
            false => Schedule::free(peers(self.world), |_| (Transfer::bare(), Transfer::bare())),
        };
        self.exchange(Method::Barrier.of(call), &mut [], schedule)
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        let plan = |_| (Transfer::free(vec![Part::User(0..data.len())]), Transfer::absent());
        self.exchange(Method::Message.of(call), &mut data.to_vec(), Schedule::free([to], plan))
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        let all = 0..data.len();
        let plan = |_| (Transfer::absent(), Transfer::free(vec![Part::User(all.clone())]));
        self.exchange(Method::Message.of(call), data, Schedule::free([from], plan))
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
