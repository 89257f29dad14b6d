//! How ranks lay their buffers open to one another for the time of a call.
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

/// Bytes that a rank takes on at a time.
const CHUNK: usize = if cfg!(miri) { 1 << 10 } else { 128 << 10 };

/// What large calls need beside the gates.
#[derive(Debug)]
pub struct Shared {
    desks: Vec<Desk>,
    /// Chunks of the current call that are taken.
    claims: AtomicUsize,
}

impl Shared {
    pub fn new(world: usize) -> Self {
        Shared { desks: (0..world).map(|_| Desk::default()).collect(), claims: AtomicUsize::new(0) }
    }
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
    /// `call` and its method, for reads, and for writes if `work` writes to it, until this returns. `work` gets a
    /// range of bytes that no other rank's `work` gets, and touches nothing else in any buffer.
    pub(super) unsafe fn share_out(
        &self,
        call: MethodCall<'_>,
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
    /// rank theirs. `work` asks `Room::may_stay` before it touches anything and again every so
    /// often, and returns when it may not.
    ///
    /// # Safety
    /// `buffer` stays valid, for whatever the ranks' `work` does to it, until this returns, and the
    /// ranks' `work` do not race with one another.
    pub(super) unsafe fn expose(
        &self,
        call: MethodCall<'_>,
        buffer: *mut u8,
        work: &dyn Fn(&Room<'_>),
    ) -> Result<()> {
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
        // Whoever may have left early does not arrive, so that nobody takes the rest for done.
        session.still_well()?;
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
pub struct Room<'a> {
    desks: &'a [Desk],
    member: &'a Member<Heap>,
}

impl Room<'_> {
    pub fn buffer(&self, rank: usize) -> *mut u8 {
        self.desks[rank].buffer.load(Ordering::Relaxed)
    }

    pub fn may_stay(&self) -> bool {
        !self.member.has_failed()
    }

    /// Copies chunk by chunk, as long as it may.
    ///
    /// # Safety
    /// As [`ptr::copy_nonoverlapping`] of `len` bytes while this rank may stay.
    pub unsafe fn copy(&self, from: *const u8, to: *mut u8, len: usize) {
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
                let work = |_: &Room<'_>| {
                    working.store(true, Ordering::SeqCst);
                    wait_until(|| may_end.load(Ordering::SeqCst));
                };
                // SAFETY: nobody touches the buffer.
                let result = unsafe { group[1].expose(Method::Barrier.of(&call()), ptr::null_mut(), &work) };
                assert!(result.is_err(), "{result:?}");
            });
            scope.spawn(|| {
                // SAFETY: as above.
                let result =
                    unsafe { group[0].expose(Method::Barrier.of(&call()), ptr::null_mut(), &|_| ()) };
                assert!(matches!(result, Err(Error::Aborted)), "{result:?}");
                assert!(may_end.load(Ordering::SeqCst), "returned too early");
                returned.store(true, Ordering::SeqCst);
            });
            wait_until(|| working.load(Ordering::SeqCst));
            group[0].abort();
            // Enough for the waiting rank to notice, and to return if it were to.
            thread::sleep(Duration::from_millis(200));
            assert!(!returned.load(Ordering::SeqCst));
            may_end.store(true, Ordering::SeqCst);
        });
        assert!(returned.load(Ordering::SeqCst));
    }

    #[test]
    fn nobody_is_let_in_or_told_that_all_is_done_after_a_failure() {
        let group = ThreadGroup::create(2).unwrap_or_default();
        thread::scope(|scope| {
            for rank in &group {
                scope.spawn(|| {
                    let work = |room: &Room<'_>| {
                        wait_until(|| !room.may_stay());
                    };
                    // SAFETY: nobody touches the buffer.
                    let result = unsafe { rank.expose(Method::Barrier.of(&call()), ptr::null_mut(), &work) };
                    assert!(result.is_err(), "all ranks left early, and one thinks the work done");
                });
            }
            thread::sleep(Duration::from_millis(50));
            group[0].abort();
        });
    }
}
