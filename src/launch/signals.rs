//! Stop signals received by the launcher.

use crate::process::stop::{self, ECHO};
use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering},
};
use std::time::Instant;

/// The stop signals received so far.
#[derive(Clone, Debug)]
pub struct Signals(Arc<Received>);

#[derive(Debug)]
struct Received {
    first: AtomicI32,
    insisted: AtomicBool,
    began: Instant,
    /// Time of the first signal, in milliseconds since `began`.
    at: AtomicU64,
}

impl Signals {
    /// The first signal, if one was received.
    pub fn first(&self) -> Option<i32> {
        match self.0.first.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Whether a second signal was received, which ends the grace period.
    pub fn insisted(&self) -> bool {
        self.0.insisted.load(Ordering::SeqCst)
    }

    pub(super) fn new() -> Self {
        Signals(Arc::new(Received {
            first: AtomicI32::new(0),
            insisted: AtomicBool::new(false),
            began: Instant::now(),
            at: AtomicU64::new(0),
        }))
    }

    /// Called from the signal handler, so that it uses only atomics and the clock.
    fn receive(&self, signal: i32) {
        self.receive_at(signal, self.0.began.elapsed().as_millis() as u64);
    }

    fn receive_at(&self, signal: i32, now: u64) {
        if self.0.first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.0.at.store(now, Ordering::SeqCst);
        } else if now > self.0.at.load(Ordering::SeqCst) + ECHO.as_millis() as u64 {
            self.0.insisted.store(true, Ordering::SeqCst);
        }
    }
}

/// Installs handlers for SIGINT, SIGTERM and SIGHUP. Signals that this process ignores, such as SIGHUP under
/// `nohup`, stay ignored.
///
/// # Errors
/// If a handler cannot be installed.
pub fn catch() -> Result<Signals> {
    let signals = Signals::new();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored(signal) {
            continue;
        }
        let received = signals.clone();
        // SAFETY: the handler only touches atomics and reads the clock.
        unsafe { signal_hook::low_level::register(signal, move || received.receive(signal)) }
            .with_context(|| format!("cannot install a signal handler for {}", stop::name(signal)))?;
    }
    Ok(signals)
}

fn ignored(signal: i32) -> bool {
    // SAFETY: with a null new action, this only reads the old one into memory of our own.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &mut action) == 0 && action.sa_sigaction == libc::SIG_IGN
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_counts_and_the_second_insists() {
        let signals = Signals::new();
        assert_eq!((signals.first(), signals.insisted()), (None, false));
        signals.receive_at(SIGTERM, 5);
        signals.receive_at(SIGTERM, 400);
        assert_eq!((signals.first(), signals.insisted()), (Some(SIGTERM), false));
        signals.receive_at(SIGINT, 600);
        assert_eq!((signals.first(), signals.insisted()), (Some(SIGTERM), true));
    }
}
