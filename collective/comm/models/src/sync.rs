//! What `src/sync.rs` has, with shuttle's types.

pub use shuttle::{
    sync::{Condvar, Mutex, MutexGuard, atomic},
    thread,
};
use std::{sync::PoisonError, time::Duration};

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Shuttle's time-outs never expire.
pub fn wait<'a, T>(changed: &Condvar, guard: MutexGuard<'a, T>, limit: Duration) -> MutexGuard<'a, T> {
    changed.wait_timeout(guard, limit).unwrap_or_else(PoisonError::into_inner).0
}
