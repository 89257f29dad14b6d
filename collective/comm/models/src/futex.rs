//! A futex without time limit: it compares the word and begins to sleep in one step.

use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicU32, Ordering},
    lock,
};
use std::{
    sync::{PoisonError, atomic::AtomicBool},
    time::Duration,
};

/// Unset for the mistake that [`wait`] sleeps whatever the word's value is.
pub static COMPARES: AtomicBool = AtomicBool::new(true);

shuttle::lazy_static! {
    static ref BUCKET: (Mutex<()>, Condvar) = Default::default();
}

pub fn wait(word: &AtomicU32, seen: u32, _limit: Duration) {
    let guard = lock(&BUCKET.0);
    if word.load(Ordering::SeqCst) == seen || !COMPARES.load(Ordering::Relaxed) {
        drop(BUCKET.1.wait(guard).unwrap_or_else(PoisonError::into_inner));
    }
}

pub fn wake(_word: &AtomicU32) {
    let _guard = lock(&BUCKET.0);
    BUCKET.1.notify_all();
}
