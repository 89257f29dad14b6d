//! Waiting on a word that threads or processes share: spin, yield, then sleep in the kernel.

use super::os;
use crate::sync::{
    atomic::{AtomicU32, Ordering},
    thread,
};
use std::time::{Duration, Instant};

/// Time for which a rank polls a word before it sleeps: about twice the time of a wake-up, and many times
/// that of a small collective.
const SPIN_TIME: Duration = Duration::from_micros(100);

/// Polls until `done` returns true; false after [`SPIN_TIME`].
///
/// While the awaited ranks run on other cores, the rank keeps its core: on a busy machine it would get the
/// core back only milliseconds later. If `crowded` tells that one of them is on this core, because ranks
/// share cores or the scheduler has placed two of them on one, the rank yields.
pub fn spin_until(done: impl Fn() -> bool, crowded: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    let started = Instant::now();
    while started.elapsed() < SPIN_TIME {
        if crowded() {
            thread::yield_now();
        }
        for _ in 0..32 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
    }
    false
}

/// A word in shared memory that ranks sleep on. Its value only ever grows (and wraps around).
#[repr(C, align(128))]
#[derive(Debug, Default)]
pub struct Word {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Word {
    pub fn load(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    /// Adds one and returns the new value. Earlier writes of this thread are visible to threads that read
    /// that value.
    pub fn increment(&self) -> u32 {
        self.value.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// Whether the word has been incremented up to `target`.
    pub fn reached(&self, target: u32) -> bool {
        self.load().wrapping_sub(target) <= u32::MAX / 2
    }

    /// Sleeps until [`Word::wake`] is called or `limit` has passed, possibly shorter. Returns at once if
    /// `target` is reached.
    pub fn sleep(&self, target: u32, limit: Duration) {
        // A waker increments the word and then reads `sleepers`; a sleeper does the opposite. All four
        // accesses are sequentially consistent, so that one of the two observes the other.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.load();
        if seen.wrapping_sub(target) > u32::MAX / 2 {
            os::wait(&self.value, seen, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes all threads that sleep on this word. Never blocks.
    pub fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            os::wake(&self.value);
        }
    }
}
