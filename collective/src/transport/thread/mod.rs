//! Transport between threads of one process.
//!
//! Large buffers are reduced in place. Each rank publishes a pointer to its buffer; whichever rank is free
//! takes the next chunk and reduces it from all buffers into all buffers. Nothing is copied, and a rank that
//! is not scheduled does not delay the others. The result does not depend on which thread reduces a chunk.

mod heap;
mod shared_buffers;

use super::{
    local::{
        Immortal, Member, check_world,
        ops::{expect_len, expect_parts},
        region::{Region, SMALL, bytes},
    },
    method::{Method, MethodCall},
};
use crate::{Communicator, Error, Result, World, communicator::Call, reduce::reduce_raw};
use heap::Heap;
use shared_buffers::{PeerBuffers, SharedBuffers};
use std::{
    collections::{HashMap, hash_map::Entry},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

/// Creates the ranks of one process.
#[derive(Debug)]
pub struct ThreadGroup;

impl ThreadGroup {
    /// One communicator for each of `world` ranks, in rank order.
    ///
    /// # Errors
    /// If the world is empty or too large.
    pub fn create(world: usize) -> Result<Vec<ThreadCommunicator>> {
        check_world(world)?;
        let region = Arc::new(Region::new(Heap::new(bytes(world))?, world));
        let shared = Arc::new(SharedBuffers::new(world));
        let member = |rank| Member::join(region.clone(), rank, Box::new(Immortal));
        (0..world)
            .map(|rank| Ok(ThreadCommunicator { member: member(rank)?, shared: shared.clone() }))
            .collect()
    }
}

/// Communicators of groups that not all ranks of a process have opened yet, by group.
#[derive(Debug, Default)]
pub(crate) struct ThreadGroups(Mutex<HashMap<u64, Vec<Option<ThreadCommunicator>>>>);

impl ThreadGroups {
    /// The communicator of one rank in a group. The first rank creates those of all ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is in use, or the world is empty or too large.
    pub fn communicator(&self, group: u64, rank: usize, size: usize) -> Result<ThreadCommunicator> {
        let mut groups = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let communicators = match groups.entry(group) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(place) => place.insert(ThreadGroup::create(size)?.into_iter().map(Some).collect()),
        };
        let mine = communicators.get_mut(rank).and_then(Option::take).ok_or_else(|| {
            Error::Invalid(format!("rank {rank} of {size} is already in use in this group"))
        })?;
        if communicators.iter().all(Option::is_none) {
            groups.remove(&group);
        }
        Ok(mine)
    }
}

/// One rank of a [`ThreadGroup`].
#[derive(Debug)]
pub struct ThreadCommunicator {
    member: Member<Heap>,
    shared: Arc<SharedBuffers>,
}

impl ThreadCommunicator {
    /// Reduces all chunks of `buffer` in place, into the buffers of the ranks for which `wants` is true.
    ///
    /// `wants` receives a rank and a part; all bytes of a chunk belong to one part.
    fn reduce_in_place(
        &self,
        call: MethodCall<'_>,
        buffer: &mut [u8],
        parts: usize,
        wants: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        let (op, world) = (call.reduction()?, self.world().size);
        expect_len(&call, "buffer", buffer.len(), 1)?;
        // Bytes of one part; an empty buffer has one empty part.
        let part = (buffer.len() / parts).max(1);
        let work = |peers: &PeerBuffers<'_>, range: Range<usize>| {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / part + 1) * part);
                // SAFETY: the owner is in its call, see the module documentation, and these bytes are
                // within the buffers, which are of equal length because the ranks agree.
                let at = |rank| unsafe { peers.buffer(rank).add(start) };
                let inputs: Vec<*const u8> = (0..world).map(|rank| at(rank).cast_const()).collect();
                let outs: Vec<*mut u8> =
                    (0..world).filter(|rank| wants(*rank, start / part)).map(at).collect();
                // SAFETY: as above, and no other rank works on these bytes.
                unsafe { reduce_raw(call.dtype, op, &inputs, &outs, end - start) };
                start = end;
            }
        };
        // SAFETY: `buffer` is borrowed for this call and not used beside its pointer.
        unsafe { self.for_each_chunk(call, buffer.as_mut_ptr(), buffer.len(), &work) }
    }
}

impl Communicator for ThreadCommunicator {
    fn world(&self) -> World {
        self.member.world()
    }

    fn name(&self) -> &'static str {
        "thread"
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if self.member.is_small(buffer.len()) {
            return self.member.all_reduce(call, buffer);
        }
        self.reduce_in_place(Method::AllReduce.of(call), buffer, 1, &|_, _| true)
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if self.member.is_small(buffer.len()) {
            return self.member.reduce(call, buffer);
        }
        let root = self.member.root(call)?;
        self.reduce_in_place(Method::Reduce.of(call), buffer, 1, &|rank, _| rank == root)
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let world = self.world().size;
        expect_parts(call, world)?;
        if buffer.len() <= SMALL {
            return self.member.reduce_scatter(call, buffer);
        }
        self.reduce_in_place(Method::ReduceScatter.of(call), buffer, world, &|rank, part| rank == part)
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if buffer.len() <= SMALL {
            return self.member.broadcast(call, buffer);
        }
        expect_len(call, "buffer", buffer.len(), 1)?;
        let (root, rank) = (self.member.root(call)?, self.world().rank);
        let (mine, len) = (buffer.as_mut_ptr(), buffer.len());
        let work = |peers: &PeerBuffers<'_>| {
            if rank != root {
                // SAFETY: the root is in its call and only reads its buffer; only this rank
                // accesses its own.
                unsafe { peers.copy(peers.buffer(root), mine, len) };
            }
        };
        // SAFETY: `buffer` is borrowed for this call and not used beside its pointer.
        unsafe { self.with_peers(Method::Broadcast.of(call), mine, &work) }
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        if mine.len() <= SMALL {
            return self.member.all_gather(call, mine, out);
        }
        expect_len(call, "input", mine.len(), 1)?;
        expect_len(call, "output", out.len(), self.world().size)?;
        let (len, out) = (mine.len(), out.as_mut_ptr());
        let work = |peers: &PeerBuffers<'_>| {
            for rank in 0..self.world().size {
                // SAFETY: the owner is in its call and only reads its input; `out` is this rank's.
                unsafe { peers.copy(peers.buffer(rank), out.add(rank * len), len) };
            }
        };
        // SAFETY: inputs are only read.
        unsafe { self.with_peers(Method::AllGather.of(call), mine.as_ptr().cast_mut(), &work) }
    }

    forward!(member: gather, scatter, send, recv, barrier);

    fn abort(&self) {
        self.member.abort();
    }
}
