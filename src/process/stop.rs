//! Stop signals in a rank.
//!
//! Outside training, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 end the process immediately. During training they request
//! a graceful shutdown: all ranks finish the step, write a checkpoint and exit. A second signal ends this rank
//! immediately.
//!
//! Schedulers such as SLURM send SIGUSR1 or SIGUSR2 before a time limit. If the program already handles or ignores
//! one of these two, its handler is kept.

use super::lock;
use anyhow::{Context, Result};
use signal_hook::{
    consts::{SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Window in which repeated signals count as one request.
///
/// A terminal and a launcher may both forward one Ctrl-C.
pub const ECHO: Duration = Duration::from_millis(500);

/// Signals that request a graceful shutdown.
pub const SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGUSR2];

const REFUSED: &str = "cannot install the signal handlers";

/// First signal received during training, or 0.
static REQUESTED: AtomicU8 = AtomicU8::new(0);
/// Number of [`GracefulShutdown`] guards.
static TRAINING: AtomicUsize = AtomicUsize::new(0);

/// Returns the signal that requested a graceful shutdown, or 0.
pub fn requested() -> u8 {
    REQUESTED.load(Ordering::SeqCst)
}

/// Starts the thread that receives stop signals until the end of the process. Idempotent.
///
/// # Errors
/// If the thread cannot be started or a handler cannot be installed.
pub fn watch() -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = lock(&STARTED);
    if !*started {
        let unused = |signal: &i32| handler(*signal) == Some(libc::SIG_DFL);
        let scheduler = [SIGUSR1, SIGUSR2].into_iter().filter(unused);
        let signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(scheduler)).context(REFUSED)?;
        let receiver = thread::Builder::new().name("signals".into());
        receiver.spawn(move || receive(signals)).context(REFUSED)?;
        *started = true;
    }
    Ok(())
}

fn receive(mut signals: Signals) {
    let mut first: Option<Instant> = None;
    for signal in signals.forever() {
        let again = first.is_some_and(|first| first.elapsed() > ECHO);
        if again || TRAINING.load(Ordering::SeqCst) == 0 {
            // SAFETY: ends the process without running destructors.
            unsafe { libc::_exit(128 + signal) };
        }
        first.get_or_insert_with(Instant::now);
        let number = u8::try_from(signal).unwrap_or(u8::MAX);
        // The first signal decides the exit code.
        let _ = REQUESTED.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
    }
}

/// Guard of the period in which signals request a graceful shutdown.
#[must_use]
pub struct GracefulShutdown(());

impl GracefulShutdown {
    /// Makes signals request a graceful shutdown until the guard is dropped.
    pub fn enable() -> Self {
        TRAINING.fetch_add(1, Ordering::SeqCst);
        Self(())
    }
}

impl Drop for GracefulShutdown {
    fn drop(&mut self) {
        TRAINING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns this process's handler of a signal, such as [`libc::SIG_DFL`].
pub fn handler(signal: i32) -> Option<libc::sighandler_t> {
    // SAFETY: with a null new action, this only writes the current one to local memory.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        (libc::sigaction(signal, std::ptr::null(), &mut action) == 0).then_some(action.sa_sigaction)
    }
}

/// Returns the name of a signal, such as `SIGTERM`.
pub fn name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}
