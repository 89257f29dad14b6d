//! Ranks that are threads of one process.
//!
//! Large buffers are reduced where they are: each rank publishes a pointer to its own, and whoever
//! has time takes the next chunk and reduces it out of all buffers into all buffers. The only
//! traffic is the reduction itself, and a rank that the scheduler starves does not hold up the
//! rest. Which thread reduces a chunk does not show in the bits.

mod exposure;
mod heap;

use super::{
    local::{
        Immortal, Member, check_world,
        ops::{expect_len, expect_parts, reduction},
        region::{Region, SMALL, bytes},
    },
    method::{Method, MethodCall},
};
use crate::{Communicator, Result, World, communicator::Call, reduce::reduce_raw};
use exposure::{Room, Shared};
use heap::Heap;
use std::{ops::Range, sync::Arc};

/// Makes the ranks of one process.
#[derive(Debug)]
pub struct ThreadGroup;

impl ThreadGroup {
    /// One communicator for each of `world` ranks, in rank order, to be handed to as many threads.
    ///
    /// # Errors
    /// If the world is empty or too large.
    pub fn create(world: usize) -> Result<Vec<ThreadCommunicator>> {
        check_world(world)?;
        let region = Arc::new(Region::new(Heap::new(bytes(world))?, world));
        let shared = Arc::new(Shared::new(world));
        let member = |rank| Member::join(region.clone(), rank, Box::new(Immortal));
        (0..world)
            .map(|rank| Ok(ThreadCommunicator { member: member(rank)?, shared: shared.clone() }))
            .collect()
    }
}

/// One rank of a [`ThreadGroup`].
#[derive(Debug)]
pub struct ThreadCommunicator {
    member: Member<Heap>,
    shared: Arc<Shared>,
}

impl ThreadCommunicator {
    /// Has all chunks of `buffer` reduced where they are, into the buffers of the ranks that
    /// `wants` names for a chunk; all bytes of a chunk have the same.
    fn reduce_in_place(
        &self,
        call: MethodCall<'_>,
        buffer: &mut [u8],
        parts: usize,
        wants: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        let (op, world) = (reduction(&call)?, self.world().size);
        expect_len(&call, "buffer", buffer.len(), 1)?;
        // Of one part; a buffer of no bytes has one empty part.
        let part = (buffer.len() / parts).max(1);
        let work = |room: &Room<'_>, range: Range<usize>| {
            let mut start = range.start;
            while start < range.end {
                let end = range.end.min((start / part + 1) * part);
                // SAFETY: the owner is in its call, see the module's text, and these bytes are
                // within the buffers, which are of equal length because the ranks agree.
                let at = |rank| unsafe { room.buffer(rank).add(start) };
                let inputs: Vec<*const u8> = (0..world).map(|rank| at(rank).cast_const()).collect();
                let outs: Vec<*mut u8> =
                    (0..world).filter(|rank| wants(*rank, start / part)).map(at).collect();
                // SAFETY: as above, and no other rank works on these bytes.
                unsafe { reduce_raw(call.dtype, op, &inputs, &outs, end - start) };
                start = end;
            }
        };
        // SAFETY: `buffer` is borrowed for this call and not used beside its pointer.
        unsafe { self.share_out(call, buffer.as_mut_ptr(), buffer.len(), &work) }
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
        let work = |room: &Room<'_>| {
            if rank != root {
                // SAFETY: the root is in its call and only reads its buffer; nobody but this rank
                // touches its own.
                unsafe { room.copy(room.buffer(root), mine, len) };
            }
        };
        // SAFETY: `buffer` is borrowed for this call and not used beside its pointer.
        unsafe { self.expose(Method::Broadcast.of(call), mine, &work) }
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        if mine.len() <= SMALL {
            return self.member.all_gather(call, mine, out);
        }
        expect_len(call, "input", mine.len(), 1)?;
        expect_len(call, "output", out.len(), self.world().size)?;
        let (len, out) = (mine.len(), out.as_mut_ptr());
        let work = |room: &Room<'_>| {
            for rank in 0..self.world().size {
                // SAFETY: the owner is in its call and only reads its input; `out` is this rank's.
                unsafe { room.copy(room.buffer(rank), out.add(rank * len), len) };
            }
        };
        // SAFETY: inputs are only read.
        unsafe { self.expose(Method::AllGather.of(call), mine.as_ptr().cast_mut(), &work) }
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        self.member.gather(call, mine, out)
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        self.member.scatter(call, all, mine)
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        self.member.send(call, to, data)
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        self.member.recv(call, from, data)
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        self.member.barrier(call)
    }

    fn abort(&self) {
        self.member.abort();
    }
}
