//! Access of ranks to each other's buffers during a call.
//!
//! # Why no buffer is accessed after its owner's call has returned
//!
//! A rank accesses the buffers of others only while it is *inside*: after the entry gate of a call with equal
//! calls on all ranks, and before it arrives at the call's output gate. A successful call returns after that
//! gate has opened, when all ranks have left. A call that fails (deadline, abort, lost peer, panic) first
//! marks the group as failed and then waits until no rank is inside. Entering is "mark myself as inside, then
//! check for a failure"; leaving after a failure is "mark the failure, then check which ranks are inside",
//! with a full fence between the halves. Either the entering rank sees the failure and turns back, or the
//! leaving rank sees it inside and waits. That wait needs no deadline, because a rank inside only computes,
//! and checks for a failure after every chunk.

use super::{ThreadCommunicator, heap::Heap};
use crate::{
    Result,
    transport::{
        local::{Member, Session, region::GateId},
        method::MethodCall,
    },
};
use std::{
    ops::Range,
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence},
    thread,
    time::Duration,
};

/// Size in bytes of the chunks that ranks process.
const CHUNK: usize = if cfg!(miri) { 1 << 10 } else { 128 << 10 };

/// State of large calls besides the gates.
#[derive(Debug)]
pub struct SharedBuffers {
    buffers: Vec<PublishedBuffer>,
    /// Number of claimed chunks of the current call.
    claims: AtomicUsize,
}

impl SharedBuffers {
    pub fn new(world: usize) -> Self {
        SharedBuffers {
            buffers: (0..world).map(|_| PublishedBuffer::default()).collect(),
            claims: AtomicUsize::new(0),
        }
    }
}

/// The buffer that one rank publishes.
#[repr(align(128))]
#[derive(Debug, Default)]
struct PublishedBuffer {
    buffer: AtomicPtr<u8>,
    inside: AtomicBool,
}

impl ThreadCommunicator {
    /// Runs a call on buffers of `len` bytes in place; `work` processes the chunks on whichever rank is free.
    ///
    /// Publishes `buffer`, synchronises with the other ranks, and returns when all chunks are complete.
    ///
    /// # Safety
    /// `buffer` is valid until this returns for `len` bytes, a number that is equal on all ranks that agree
    /// on `call` and its method, for reads, and for writes if `work` writes to it. `work` receives a range of
    /// bytes that no other rank's `work` receives, and accesses nothing else in any buffer.
    pub(super) unsafe fn for_each_chunk(
        &self,
        call: MethodCall<'_>,
        buffer: *mut u8,
        len: usize,
        work: &dyn Fn(&PeerBuffers<'_>, Range<usize>),
    ) -> Result<()> {
        // SAFETY: passed on; chunks are claimed one by one.
        unsafe {
            self.with_peers(call, buffer, &|peers| {
                while peers.may_continue() {
                    let start = self.shared.claims.fetch_add(1, Ordering::Relaxed).saturating_mul(CHUNK);
                    if start >= len {
                        break;
                    }
                    work(peers, start..(start + CHUNK).min(len));
                }
            })
        }
    }

    /// Runs a call during which the ranks' `work` may access this rank's `buffer`.
    ///
    /// `work` checks `PeerBuffers::may_continue` before any access and regularly afterwards, and returns when
    /// it is false.
    ///
    /// # Safety
    /// `buffer` stays valid, for whatever the ranks' `work` does to it, until this returns, and the
    /// ranks' `work` do not race with one another.
    pub(super) unsafe fn with_peers(
        &self,
        call: MethodCall<'_>,
        buffer: *mut u8,
        work: &dyn Fn(&PeerBuffers<'_>),
    ) -> Result<()> {
        let session = self.member.begin(call)?;
        let published = &self.shared.buffers[self.member.world().rank];
        published.buffer.store(buffer, Ordering::Relaxed);
        // All ranks have left the last call that used it, and none begins before all have stored 0.
        self.shared.claims.store(0, Ordering::Relaxed);
        let mut publication = Publication { buffers: &self.shared.buffers, session: Some(session) };
        let Some(session) = &mut publication.session else { unreachable!("just put there") };
        session.enter()?;
        {
            let inside = Inside::enter(published);
            work(&PeerBuffers { buffers: &self.shared.buffers, member: &self.member });
            drop(inside);
        }
        // A rank that may have left early does not arrive, so that no rank considers the call complete.
        session.check_failure()?;
        let left = session.arrive(GateId::Output(0));
        session.wait(left)?;
        publication.session.take().into_iter().for_each(Session::finish);
        Ok(())
    }
}

/// While it exists, peers may access this rank's buffer. After its drop, none of them is inside.
struct Publication<'a> {
    buffers: &'a [PublishedBuffer],
    /// Removed by a successful call.
    session: Option<Session<'a, Heap>>,
}

impl Drop for Publication<'_> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else { return };
        // Marks the failure, unless it is marked already.
        drop(session);
        fence(Ordering::SeqCst);
        for published in self.buffers {
            let mut looks = 0;
            while published.inside.load(Ordering::Acquire) {
                looks += 1;
                if looks < 100 { thread::yield_now() } else { thread::sleep(Duration::from_micros(100)) }
            }
        }
    }
}

/// The buffers of all ranks, for a rank that is inside.
pub struct PeerBuffers<'a> {
    buffers: &'a [PublishedBuffer],
    member: &'a Member<Heap>,
}

impl PeerBuffers<'_> {
    pub fn buffer(&self, rank: usize) -> *mut u8 {
        self.buffers[rank].buffer.load(Ordering::Relaxed)
    }

    pub fn may_continue(&self) -> bool {
        !self.member.has_failed()
    }

    /// Copies chunk by chunk, until the group fails.
    ///
    /// # Safety
    /// As [`ptr::copy_nonoverlapping`] of `len` bytes while [`PeerBuffers::may_continue`] is true.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
        for at in (0..len).step_by(CHUNK) {
            if !self.may_continue() {
                return;
            }
            // SAFETY: the caller's contract.
            unsafe { ptr::copy_nonoverlapping(from.add(at), to.add(at), CHUNK.min(len - at)) };
        }
    }
}

/// Marks this rank as inside. It must check for a failure before any access.
struct Inside<'a>(&'a PublishedBuffer);

impl<'a> Inside<'a> {
    fn enter(published: &'a PublishedBuffer) -> Self {
        published.inside.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        Inside(published)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.store(false, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::super::ThreadGroup;
    use super::*;
    use crate::{Communicator, DType, Error, communicator::Call, transport::method::Method};
    use std::sync::atomic::AtomicBool;

    fn call() -> Call {
        Call {
            seq: 1,
            operation: "test",
            dtype: DType::U8,
            count: 0,
            reduce: None,
            root: None,
            timeout: Duration::from_secs(60),
        }
    }

    fn wait_until(condition: impl Fn() -> bool) {
        let begun = std::time::Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(60), "waited for too long");
            thread::yield_now();
        }
    }

    #[test]
    fn a_failed_call_does_not_return_while_a_peer_is_inside() {
        let group = ThreadGroup::create(2).unwrap_or_default();
        let [working, may_end, returned] = [const { AtomicBool::new(false) }; 3];
        thread::scope(|scope| {
            scope.spawn(|| {
                let work = |_: &PeerBuffers<'_>| {
                    working.store(true, Ordering::SeqCst);
                    wait_until(|| may_end.load(Ordering::SeqCst));
                };
                // SAFETY: nothing accesses the buffer.
                let result =
                    unsafe { group[1].with_peers(Method::Barrier.of(&call()), ptr::null_mut(), &work) };
                assert!(result.is_err(), "{result:?}");
            });
            scope.spawn(|| {
                // SAFETY: as above.
                let result =
                    unsafe { group[0].with_peers(Method::Barrier.of(&call()), ptr::null_mut(), &|_| ()) };
                assert!(matches!(result, Err(Error::Aborted)), "{result:?}");
                assert!(may_end.load(Ordering::SeqCst), "returned too early");
                returned.store(true, Ordering::SeqCst);
            });
            wait_until(|| working.load(Ordering::SeqCst));
            group[0].abort();
            // Long enough for the waiting rank to return if it did not wait.
            thread::sleep(Duration::from_millis(200));
            assert!(!returned.load(Ordering::SeqCst));
            may_end.store(true, Ordering::SeqCst);
        });
        assert!(returned.load(Ordering::SeqCst));
    }

    #[test]
    fn after_a_failure_no_rank_enters_or_completes() {
        let group = ThreadGroup::create(2).unwrap_or_default();
        thread::scope(|scope| {
            for rank in &group {
                scope.spawn(|| {
                    let work = |peers: &PeerBuffers<'_>| {
                        wait_until(|| !peers.may_continue());
                    };
                    // SAFETY: nothing accesses the buffer.
                    let result =
                        unsafe { rank.with_peers(Method::Barrier.of(&call()), ptr::null_mut(), &work) };
                    assert!(result.is_err(), "all ranks left early, and one thinks the work done");
                });
            }
            thread::sleep(Duration::from_millis(50));
            group[0].abort();
        });
    }
}
