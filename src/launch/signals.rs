//! Remembers that this launcher was told to stop, and how often.

use anyhow::{Context, Result};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::{
    Arc,
    atomic::{AtomicI32, AtomicUsize, Ordering},
};

/// The signals that have asked this process to stop.
#[derive(Clone, Debug, Default)]
pub struct Signals(Arc<Received>);

#[derive(Debug, Default)]
struct Received {
    first: AtomicI32,
    count: AtomicUsize,
}

impl Signals {
    /// The first one, if any came.
    pub fn first(&self) -> Option<i32> {
        match self.0.first.load(Ordering::SeqCst) {
            0 => None,
            signal => Some(signal),
        }
    }

    /// Whether one came a second time: whoever sends it does not want to wait any longer.
    pub fn insisted(&self) -> bool {
        self.0.count.load(Ordering::SeqCst) > 1
    }

    fn receive(&self, signal: i32) {
        let _ = self.0.first.compare_exchange(0, signal, Ordering::SeqCst, Ordering::SeqCst);
        self.0.count.fetch_add(1, Ordering::SeqCst);
    }
}

/// Watches SIGINT, SIGTERM and SIGHUP from now on. One that this process was started to ignore
/// (SIGHUP under `nohup`) stays ignored.
///
/// # Errors
/// If the handlers cannot be installed.
pub fn catch() -> Result<Signals> {
    let signals = Signals::default();
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        if ignored(signal) {
            continue;
        }
        let received = signals.clone();
        // SAFETY: the handler only touches atomics.
        unsafe { signal_hook::low_level::register(signal, move || received.receive(signal)) }
            .with_context(|| format!("cannot watch for {}", name(signal)))?;
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

/// A signal's name, such as `SIGTERM`.
pub fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_signal_counts_and_the_second_insists() {
        let signals = Signals::default();
        assert_eq!((signals.first(), signals.insisted()), (None, false));
        signals.receive(SIGTERM);
        assert_eq!((signals.first(), signals.insisted()), (Some(SIGTERM), false));
        signals.receive(SIGINT);
        assert_eq!((signals.first(), signals.insisted()), (Some(SIGTERM), true));
    }
}
