//! Ranks that are threads of one process.
//!
//! Large buffers are reduced where they are: each rank publishes a pointer to its own, and whoever
//! has time takes the next chunk and reduces it out of all buffers into all buffers. The only
//! traffic is the reduction itself, and a rank that the scheduler starves does not hold up the
//! rest. Which thread reduces a chunk does not show in the bits.
//!
//! # Why nobody touches a buffer after its owner's call has returned
//!
//! A rank touches the buffers of others only while it is *inside*: after the entry gate of a call
//! that all ranks agree on, and before it arrives at the call's output gate. A successful call
//! returns after that gate has opened, when all have left. A call that fails (deadline, abort,
//! lost peer, panic) first declares the group failed and then waits until no rank is inside.
//! Entering is "say that I am inside, then look whether the group has failed", leaving in haste is
//! "declare the failure, then look who is inside", with a full fence between the halves: either
//! the one who enters sees the failure and turns back, or the one who leaves sees it inside and
//! waits. That wait needs no deadline, because whoever is inside only computes, and looks after
//! every chunk whether the group has failed.

use super::local::{
    Immortal, Member, Session, check_world,
    ops::{expect_len, expect_parts, reduction},
    region::{GateId, Memory, Region, SMALL, bytes},
};
use crate::{Communicator, Error, Result, World, communicator::Call, reduce::reduce_raw};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ops::Range,
    ptr::{self, NonNull},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence},
    },
    thread,
    time::Duration,
};

/// Bytes that a rank takes on at a time.
const CHUNK: usize = if cfg!(miri) { 1 << 10 } else { 128 << 10 };

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
        let desks = (0..world).map(|_| Desk::default()).collect();
        let shared = Arc::new(Shared { desks, claims: AtomicUsize::new(0) });
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

/// What large calls need beside the gates.
#[derive(Debug)]
struct Shared {
    desks: Vec<Desk>,
    /// Chunks of the current call that are taken.
    claims: AtomicUsize,
}

/// What one rank lays open to the others.
#[repr(align(128))]
#[derive(Debug, Default)]
struct Desk {
    buffer: AtomicPtr<u8>,
    inside: AtomicBool,
}

impl ThreadCommunicator {
    /// A call on buffers of `len` bytes in place: publishes `buffer`, meets the others, has `work`
    /// done on all chunks by whoever has time, and returns when all chunks are done.
    ///
    /// # Safety
    /// `buffer` is valid for `len` bytes, which are the same number on all ranks that agree on
    /// `call`, for reads, and for writes if `work` writes to it, until this returns. `work` gets a
    /// range of bytes that no other rank's `work` gets, and touches nothing else in any buffer.
    unsafe fn share_out(
        &self,
        call: &Call,
        buffer: *mut u8,
        len: usize,
        work: &dyn Fn(&Room<'_>, Range<usize>),
    ) -> Result<()> {
        // SAFETY: passed on; chunks are claimed one by one.
        unsafe {
            self.expose(call, buffer, &|room| {
                while room.may_stay() {
                    let start = self.shared.claims.fetch_add(1, Ordering::Relaxed).saturating_mul(CHUNK);
                    if start >= len {
                        break;
                    }
                    work(room, start..(start + CHUNK).min(len));
                }
            })
        }
    }

    /// A call during which peers may touch this rank's `buffer`, within their `work`, and this
    /// rank theirs. `work` asks [`Room::may_stay`] before it touches anything and again every so
    /// often, and returns when it may not.
    ///
    /// # Safety
    /// `buffer` stays valid, for whatever the ranks' `work` does to it, until this returns, and the
    /// ranks' `work` do not race with one another.
    unsafe fn expose(&self, call: &Call, buffer: *mut u8, work: &dyn Fn(&Room<'_>)) -> Result<()> {
        let session = self.member.begin(call)?;
        let desk = &self.shared.desks[self.member.world().rank];
        desk.buffer.store(buffer, Ordering::Relaxed);
        // All have left the last call that used this, and none begins before all have stored 0.
        self.shared.claims.store(0, Ordering::Relaxed);
        let mut exposed = Exposed { desks: &self.shared.desks, session: Some(session) };
        let Some(session) = &mut exposed.session else { unreachable!("just put there") };
        session.enter()?;
        {
            let inside = Inside::enter(desk);
            work(&Room { desks: &self.shared.desks, member: &self.member });
            drop(inside);
        }
        let left = session.arrive(GateId::Output(0));
        session.wait(left)?;
        exposed.session.take().into_iter().for_each(Session::finish);
        Ok(())
    }
}

/// While it lives, peers may know this rank's buffer; when it goes, none of them is inside.
struct Exposed<'a> {
    desks: &'a [Desk],
    /// Taken away by a call that has ended well.
    session: Option<Session<'a, Heap>>,
}

impl Drop for Exposed<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Declares the failure, if that has not happened yet.
        drop(session);
        fence(Ordering::SeqCst);
        for desk in self.desks {
            let mut looks = 0;
            while desk.inside.load(Ordering::Acquire) {
                looks += 1;
                if looks < 100 { thread::yield_now() } else { thread::sleep(Duration::from_micros(100)) }
            }
        }
    }
}

/// The buffers of all ranks, as seen from inside.
struct Room<'a> {
    desks: &'a [Desk],
    member: &'a Member<Heap>,
}

impl Room<'_> {
    fn buffer(&self, rank: usize) -> *mut u8 {
        self.desks[rank].buffer.load(Ordering::Relaxed)
    }

    fn may_stay(&self) -> bool {
        !self.member.has_failed()
    }

    /// Copies chunk by chunk, as long as it may.
    ///
    /// # Safety
    /// As [`ptr::copy_nonoverlapping`] of `len` bytes while this rank may stay.
    unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
        for at in (0..len).step_by(CHUNK) {
            if !self.may_stay() {
                return;
            }
            // SAFETY: the caller's contract.
            unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), CHUNK.min(len - at)) };
        }
    }
}

/// This rank may be touching others' buffers. It has to look for a failure before it does.
struct Inside<'a>(&'a Desk);

impl<'a> Inside<'a> {
    fn enter(desk: &'a Desk) -> Self {
        desk.inside.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Inside(desk)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

impl ThreadCommunicator {
    /// Has all chunks of `buffer` reduced where they are, into the buffers of the ranks that
    /// `wants` names for a chunk; all bytes of a chunk have the same.
    fn reduce_in_place(
        &self,
        call: &Call,
        buffer: &mut [u8],
        parts: usize,
        wants: &dyn Fn(usize, usize) -> bool,
    ) -> Result<()> {
        let (op, world) = (reduction(call)?, self.world().size);
        expect_len(call, "buffer", buffer.len(), 1)?;
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
        self.reduce_in_place(call, buffer, 1, &|_, _| true)
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if self.member.is_small(buffer.len()) {
            return self.member.reduce(call, buffer);
        }
        let root = self.member.root(call)?;
        self.reduce_in_place(call, buffer, 1, &|rank, _| rank == root)
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let world = self.world().size;
        expect_parts(call, world)?;
        if buffer.len() <= SMALL {
            return self.member.reduce_scatter(call, buffer);
        }
        self.reduce_in_place(call, buffer, world, &|rank, part| rank == part)
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
        unsafe { self.expose(call, mine, &work) }
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
        unsafe { self.expose(call, mine.as_ptr().cast_mut(), &work) }
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

/// Memory of this process.
#[derive(Debug)]
struct Heap {
    start: NonNull<u8>,
    len: usize,
}

/// What [`Memory`] promises.
const PAGE: usize = 4096;

impl Heap {
    fn new(len: usize) -> Result<Self> {
        // SAFETY: not of size zero.
        match NonNull::new(unsafe { alloc_zeroed(Self::layout(len)?) }) {
            Some(start) => Ok(Heap { start, len }),
            None => Err(Error::Invalid(format!("out of memory: {len} bytes for a group of threads"))),
        }
    }

    /// Room to align within: an aligned allocation would not be zeroed lazily.
    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len + PAGE, 16).map_err(|e| Error::Invalid(format!("{len} bytes: {e}")))
    }
}

// SAFETY: aligned within the allocation, which lives as long as this.
unsafe impl Memory for Heap {
    fn base(&self) -> *mut u8 {
        let start = self.start.as_ptr();
        start.wrapping_add(start.align_offset(PAGE))
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address; who may read and write there is `Member`'s business.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.len) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
