//! Locks and waits that a panic of another thread does not make fail, and pauses of polling threads.

use std::{
    hint,
    sync::PoisonError,
    time::{Duration, Instant},
};
/// What `models/` replaces by types that run threads in every order.
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};

/// A polling thread spins this long, then yields this long, then sleeps.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_micros(50);

/// Pauses a thread that has polled since `begun`.
pub(crate) fn pause(begun: Instant) {
    match begun.elapsed() {
        waited if waited < SPIN => hint::spin_loop(),
        waited if waited < YIELD => thread::yield_now(),
        _ => thread::sleep(SLEEP),
    }
}

/// Joins a thread that ends within `limit`; a later one is returned.
pub(crate) fn join_within<T>(
    thread: thread::JoinHandle<T>,
    limit: Duration,
) -> Result<thread::Result<T>, thread::JoinHandle<T>> {
    let begun = Instant::now();
    while !thread.is_finished() && begun.elapsed() < limit {
        pause(begun);
    }
    if thread.is_finished() { Ok(thread.join()) } else { Err(thread) }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a notification of `changed`, at most for `limit`.
pub(crate) fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}
