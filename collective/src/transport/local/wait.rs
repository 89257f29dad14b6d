//! Waiting on a word that several threads or processes share: spin, yield, then sleep in the kernel.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    thread,
    time::{Duration, Instant},
};

/// How long a rank looks at a word itself before it lets the kernel wake it: about twice what a
/// wake-up takes, which is many times what a small collective takes.
const PATIENCE: Duration = Duration::from_micros(100);

/// True as soon as `done` is; false when patience has run out.
///
/// While those who are waited for run on other cores, the rank keeps its own: giving it away on a
/// busy machine means to get it back milliseconds later. When `crowded` says that one of them
/// needs this very core, because ranks share cores or because the scheduler happens to have put
/// two of them on one, it yields.
pub fn patiently(done: impl Fn() -> bool, crowded: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    let started = Instant::now();
    while started.elapsed() < PATIENCE {
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

/// Number of the core that this thread is on; the same for all where that is unknown, so that
/// everybody yields.
pub fn this_core() -> u32 {
    #[cfg(all(target_os = "linux", not(miri)))]
    // SAFETY: takes nothing; cannot fail on any kernel that Rust supports.
    return unsafe { libc::sched_getcpu() }.cast_unsigned();
    #[cfg(any(not(target_os = "linux"), miri))]
    return 0;
}

/// A word in shared memory that ranks sleep on. Its value only ever grows (and wraps around).
#[repr(C)]
#[derive(Debug)]
pub struct Word {
    value: AtomicU32,
    sleepers: AtomicU32,
}

impl Word {
    pub fn load(&self) -> u32 {
        self.value.load(Ordering::SeqCst)
    }

    /// Adds one and returns the new value; what this thread wrote before is visible to whoever
    /// reads that value.
    pub fn increment(&self) -> u32 {
        self.value.fetch_add(1, Ordering::SeqCst).wrapping_add(1)
    }

    /// True once the word has been incremented up to `target`.
    pub fn reached(&self, target: u32) -> bool {
        self.load().wrapping_sub(target) <= u32::MAX / 2
    }

    /// Sleeps until somebody calls [`Word::wake`] or `limit` has passed, or for no reason; returns
    /// at once if `target` is reached.
    pub fn sleep(&self, target: u32, limit: Duration) {
        // A waker increments the word, then reads `sleepers`; a sleeper does it the other way
        // round. All four are sequentially consistent, so one of the two sees the other.
        self.sleepers.fetch_add(1, Ordering::SeqCst);
        let seen = self.load();
        if seen.wrapping_sub(target) > u32::MAX / 2 {
            os::wait(&self.value, seen, limit);
        }
        self.sleepers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Wakes everybody who sleeps on this word. Never blocks.
    pub fn wake(&self) {
        if self.sleepers.load(Ordering::SeqCst) > 0 {
            os::wake(&self.value);
        }
    }
}

#[cfg(target_os = "linux")]
mod os {
    use super::{AtomicU32, Duration};

    /// Sleeps while `word` is `seen`, at most `limit`. Not `FUTEX_PRIVATE_FLAG`: the word may be
    /// shared between processes. Errors (changed meanwhile, interrupted, time over) all mean: look again.
    pub fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
        let limit = libc::timespec {
            tv_sec: limit.as_secs().try_into().unwrap_or(libc::time_t::MAX),
            tv_nsec: limit.subsec_nanos().into(),
        };
        // SAFETY: `word` and `limit` are valid for the call.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const limit) };
    }

    pub fn wake(word: &AtomicU32) {
        // SAFETY: waking only uses the address.
        unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, libc::c_int::MAX) };
    }
}

/// Where there is no futex, a sleeper looks again after a short while.
#[cfg(not(target_os = "linux"))]
mod os {
    use super::{AtomicU32, Duration};

    pub fn wait(_word: &AtomicU32, _seen: u32, limit: Duration) {
        std::thread::sleep(limit.min(Duration::from_micros(200)));
    }

    pub fn wake(_word: &AtomicU32) {}
}
