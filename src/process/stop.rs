//! Stop signals in a rank.
//!
//! Outside training, SIGINT and SIGTERM end the process immediately. During training they request a graceful
//! shutdown: all ranks finish the step, write a checkpoint and exit. A second signal ends this rank immediately.

use anyhow::{Context, Result};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Window in which repeated signals count as one request.
///
/// A terminal and a launcher may both forward one Ctrl-C.
pub const ECHO: Duration = Duration::from_millis(500);

/// First signal received during training, or 0.
static REQUESTED: AtomicU8 = AtomicU8::new(0);

/// Returns the signal that requested a graceful shutdown, or 0.
pub fn requested() -> u8 {
    REQUESTED.load(Ordering::SeqCst)
}

/// Handler of stop signals until the end of the process.
#[derive(Clone)]
pub struct StopSignals {
    training: Arc<AtomicBool>,
}

impl StopSignals {
    /// Blocks the signals and starts a thread that receives them.
    ///
    /// Call it before any other thread is started: threads inherit the signal mask, so that signals do not
    /// interrupt their system calls.
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
                return Err(std::io::Error::from_raw_os_error(refused))
                    .context("cannot install the signal handlers");
            }
            set
        };
        let watcher = signals.clone();
        thread::Builder::new()
            .name("signals".into())
            .spawn(move || watcher.receive(&set))
            .context("cannot install the signal handlers")?;
        Ok(signals)
    }

    fn receive(&self, set: &libc::sigset_t) {
        let mut first: Option<Instant> = None;
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are valid for the call.
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
            let _ = REQUESTED.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// Makes signals request a graceful shutdown until the guard is dropped.
    pub fn enable_graceful_shutdown(&self) -> GracefulShutdown {
        self.training.store(true, Ordering::SeqCst);
        GracefulShutdown(self.training.clone())
    }
}

/// Guard of the period in which signals request a graceful shutdown.
#[must_use]
pub struct GracefulShutdown(Arc<AtomicBool>);

impl Drop for GracefulShutdown {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// Returns the name of a signal, such as `SIGTERM`.
pub fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
