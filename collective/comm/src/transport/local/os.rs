//! System calls of waiting ranks.

use std::{sync::atomic::AtomicU32, time::Duration};

/// Number of the core that this thread runs on; equal for all threads if unknown, so that all of them yield.
pub fn this_core() -> u32 {
    #[cfg(all(target_os = "linux", not(miri)))]
    return rustix::thread::sched_getcpu() as u32;
    #[cfg(any(not(target_os = "linux"), miri))]
    return 0;
}

/// Sleeps while `word` is `seen`, at most `limit`, possibly shorter.
pub fn wait(word: &AtomicU32, seen: u32, limit: Duration) {
    #[cfg(target_os = "linux")]
    {
        use rustix::{event::Timespec, thread::futex};
        // After an error (value changed, interrupted, time-out) the caller checks the word again.
        let _ = futex::wait(word, SHARED, seen, Timespec::try_from(limit).ok().as_ref());
    }
    // Without futexes, a sleeper polls.
    #[cfg(not(target_os = "linux"))]
    {
        let _ = (word, seen);
        std::thread::sleep(limit.min(Duration::from_micros(200)));
    }
}

/// Wakes all threads that sleep on `word`.
pub fn wake(word: &AtomicU32) {
    // Fails for an invalid address only.
    #[cfg(target_os = "linux")]
    let _ = rustix::thread::futex::wake(word, SHARED, i32::MAX as u32);
    #[cfg(not(target_os = "linux"))]
    let _ = word;
}

/// Not [`PRIVATE`](rustix::thread::futex::Flags::PRIVATE): the word may be shared between processes.
#[cfg(target_os = "linux")]
const SHARED: rustix::thread::futex::Flags = rustix::thread::futex::Flags::empty();
