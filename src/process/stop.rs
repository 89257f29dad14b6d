//! Stop signals in a rank.
//!
//! Before training, Ctrl-C and SIGTERM end the process at once. During training they ask all ranks to finish
//! the step, write a checkpoint and exit; a second signal ends this rank at once.

use anyhow::{Context, Result};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Signals within this time after the first count as the same request.
///
/// A terminal and a launcher may both forward one Ctrl-C.
pub const ECHO: Duration = Duration::from_millis(500);

/// The first signal received during training, or 0.
static ASKED: AtomicU8 = AtomicU8::new(0);

/// The signal that asked this process to stop, or 0.
pub fn asked() -> u8 {
    ASKED.load(Ordering::SeqCst)
}

/// Watches for stop signals from its creation to the end of the process.
#[derive(Clone)]
pub struct StopSignals {
    training: Arc<AtomicBool>,
}

impl StopSignals {
    /// Blocks the signals and starts a thread that receives them.
    ///
    /// Call it before any other thread is started: threads inherit the mask, so that their system calls are
    /// never interrupted.
    ///
    /// # Errors
    /// If the signals cannot be blocked or the thread cannot be started.
    pub fn watch() -> Result<Self> {
        let signals = Self { training: Arc::default() };
        // SAFETY: `set` is initialised by the first call and read by the others.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, libc::SIGINT);
            libc::sigaddset(&mut set, libc::SIGTERM);
            let refused = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
            if refused != 0 {
                return Err(std::io::Error::from_raw_os_error(refused)).context("cannot watch for signals");
            }
            set
        };
        let watcher = signals.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || watcher.follow(&set))
            .context("cannot watch for signals")?;
        Ok(signals)
    }

    fn follow(&self, set: &libc::sigset_t) {
        let mut first: Option<Instant> = None;
        loop {
            let mut signal = 0;
            // SAFETY: both point to values of our own.
            if unsafe { libc::sigwait(set, &mut signal) } != 0 {
                return;
            }
            let again = first.is_some_and(|first| first.elapsed() > ECHO);
            if again || !self.training.load(Ordering::SeqCst) {
                // SAFETY: ends the process without running destructors.
                unsafe { libc::_exit(128 + signal) };
            }
            first.get_or_insert_with(Instant::now);
            let number = u8::try_from(signal).unwrap_or(u8::MAX);
            // The first signal decides the exit code.
            let _ = ASKED.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Lets signals ask for a stop, instead of ending the process, until the guard is dropped.
    pub fn training_begins(&self) -> Training {
        self.training.store(true, Ordering::SeqCst);
        Training(self.training.clone())
    }
}

/// Guard of the time in which signals only ask for a stop.
#[must_use]
pub struct Training(Arc<AtomicBool>);

impl Drop for Training {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Name of a signal, such as `SIGTERM`.
pub fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
