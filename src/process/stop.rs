//! Stop signals, in a rank and in the launcher.
//!
//! In a rank outside training, SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 end the process immediately. During training they request
//! a graceful shutdown: all ranks finish the step, write a checkpoint and exit. A second signal ends this rank
//! immediately.
//!
//! Schedulers such as SLURM send SIGUSR1 or SIGUSR2 before a time limit. If the program already handles or ignores
//! one of these two, its handler is kept.
//!
//! The launcher forwards these signals and SIGHUP to the ranks. A second signal ends their grace period.

use super::lock;
use anyhow::{Context, Result};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2},
    iterator::Signals,
};
use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Window in which repeated signals count as one request.
///
/// A rank gets one signal from a terminal or SLURM and from its launcher, which also hears of it from other machines.
const ECHO: Duration = Duration::from_secs(2);

/// Signals that request a graceful shutdown.
pub const SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGUSR2];

const REFUSED: &str = "cannot install the signal handlers";

/// First signal received during training or in the launcher, or 0.
static REQUESTED: AtomicU8 = AtomicU8::new(0);
/// Whether the launcher has received a second signal.
static INSISTED: AtomicBool = AtomicBool::new(false);
/// Number of [`GracefulShutdown`] guards of trainings.
static TRAINING: AtomicUsize = AtomicUsize::new(0);
/// Number of [`GracefulShutdown`] guards of launchers.
static LAUNCHING: AtomicUsize = AtomicUsize::new(0);

/// Returns the signal that requested a graceful shutdown, or 0.
pub fn requested() -> u8 {
    REQUESTED.load(Ordering::SeqCst)
}

/// Returns the signal of [`requested`], if there is one.
pub fn signal() -> Option<i32> {
    Some(requested().into()).filter(|signal| *signal > 0)
}

/// Whether the launcher has received a second signal, which ends the grace period of the ranks.
pub fn insisted() -> bool {
    INSISTED.load(Ordering::SeqCst)
}

/// Starts the thread that receives a rank's stop signals until the end of the process. Idempotent.
///
/// # Errors
/// If the thread cannot be started or a handler cannot be installed.
pub fn watch() -> Result<()> {
    let unused = |signal: &i32| handler(*signal) == Some(libc::SIG_DFL);
    let scheduler = [SIGUSR1, SIGUSR2].into_iter().filter(unused);
    start([SIGINT, SIGTERM].into_iter().chain(scheduler))
}

fn start(signals: impl Iterator<Item = i32>) -> Result<()> {
    static STARTED: Mutex<bool> = Mutex::new(false);
    let mut started = lock(&STARTED);
    if !*started {
        let signals = Signals::new(signals).context(REFUSED)?;
        let receiver = thread::Builder::new().name("signals".into());
        receiver.spawn(move || receive(signals)).context(REFUSED)?;
        *started = true;
    }
    Ok(())
}

fn receive(mut signals: Signals) {
    let mut first = None;
    for signal in signals.forever() {
        let again = is_again(&mut first, Instant::now());
        let launching = LAUNCHING.load(Ordering::SeqCst) > 0;
        if !launching && (again || TRAINING.load(Ordering::SeqCst) == 0) {
            // SAFETY: ends the process without running destructors.
            unsafe { libc::_exit(128 + signal) };
        }
        let number = u8::try_from(signal).unwrap_or(u8::MAX);
        // The first signal decides the exit code.
        let _ = REQUESTED.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        INSISTED.fetch_or(again, Ordering::SeqCst);
    }
}

/// Whether a signal at the time `now` is a second one.
fn is_again(first: &mut Option<Instant>, now: Instant) -> bool {
    now > *first.get_or_insert(now) + ECHO
}

/// Guard of the period in which signals request a graceful shutdown.
#[must_use]
pub struct GracefulShutdown(&'static AtomicUsize);

impl GracefulShutdown {
    /// Makes signals request a graceful shutdown until the guard is dropped.
    pub fn enable() -> Self {
        Self::count(&TRAINING)
    }

    /// Makes this process receive stop signals as the launcher until the guard is dropped. Signals that it ignores, such
    /// as SIGHUP under `nohup`, stay ignored.
    ///
    /// # Errors
    /// Those of [`watch`].
    pub fn in_launcher() -> Result<Self> {
        let guard = Self::count(&LAUNCHING);
        let ignored = |signal| handler(signal) == Some(libc::SIG_IGN);
        start(SIGNALS.into_iter().chain([SIGHUP]).filter(|signal| !ignored(*signal)))?;
        Ok(guard)
    }

    fn count(guards: &'static AtomicUsize) -> Self {
        guards.fetch_add(1, Ordering::SeqCst);
        Self(guards)
    }
}

impl Drop for GracefulShutdown {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Returns this process's handler of a signal, such as [`libc::SIG_DFL`].
fn handler(signal: i32) -> Option<libc::sighandler_t> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_signal_counts_after_a_while() {
        let (mut first, begun) = (None, Instant::now());
        let after = [0, 1900, 2100].map(Duration::from_millis);
        assert_eq!(after.map(|time| is_again(&mut first, begun + time)), [false, false, true]);
    }
}
