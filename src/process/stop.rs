//! Stop signals in a rank.
//!
//! Outside training, SIGINT and SIGTERM end the process immediately. During training they request a graceful
//! shutdown: all ranks finish the step, write a checkpoint and exit. A second signal ends this rank immediately.

use anyhow::{Context, Result};
use std::{
    io, mem,
    os::unix::thread::JoinHandleExt,
    ptr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Window in which repeated signals count as one request.
///
/// A terminal and a launcher may both forward one Ctrl-C.
pub const ECHO: Duration = Duration::from_millis(500);

const REFUSED: &str = "cannot install the signal handlers";

/// First signal received during training, or 0.
static REQUESTED: AtomicU8 = AtomicU8::new(0);

/// Returns the signal that requested a graceful shutdown, or 0.
pub fn requested() -> u8 {
    REQUESTED.load(Ordering::SeqCst)
}

/// Stop signals that are blocked in this thread, and in the threads that it starts, until this value is dropped.
///
/// Block them before a driver is used: the signals then do not interrupt system calls of its threads.
pub struct BlockedSignals {
    blocked: libc::sigset_t,
    previous: libc::sigset_t,
}

impl BlockedSignals {
    /// Blocks the signals.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn block() -> Result<Self> {
        // SAFETY: `blocked` is initialised by `sigemptyset`, `previous` by `pthread_sigmask`.
        unsafe {
            let (mut blocked, mut previous): (libc::sigset_t, libc::sigset_t) = mem::zeroed();
            libc::sigemptyset(&mut blocked);
            libc::sigaddset(&mut blocked, libc::SIGINT);
            libc::sigaddset(&mut blocked, libc::SIGTERM);
            match libc::pthread_sigmask(libc::SIG_BLOCK, &blocked, &mut previous) {
                0 => Ok(Self { blocked, previous }),
                refused => Err(io::Error::from_raw_os_error(refused)).context(REFUSED),
            }
        }
    }

    /// Starts the thread that receives the signals. They stay blocked in this thread.
    ///
    /// Signals that another thread receives, because it was started earlier, are forwarded.
    ///
    /// # Errors
    /// If the thread cannot be started or a handler cannot be installed.
    pub fn watch(self) -> Result<StopSignals> {
        static STARTED: Mutex<Option<StopSignals>> = Mutex::new(None);
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        let signals = match &*started {
            Some(signals) => signals.clone(),
            None => StopSignals::start(self.blocked)?,
        };
        *started = Some(signals.clone());
        mem::forget(self);
        Ok(signals)
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `previous` is initialised.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.previous, ptr::null_mut()) };
    }
}

/// Handler of stop signals until the end of the process. The default value receives none.
#[derive(Clone, Default)]
pub struct StopSignals {
    training: Arc<AtomicBool>,
}

impl StopSignals {
    fn start(blocked: libc::sigset_t) -> Result<Self> {
        let signals = Self::default();
        let watcher = signals.clone();
        let receiver = thread::Builder::new()
            .name("signals".into())
            .spawn(move || watcher.receive(&blocked))
            .context(REFUSED)?
            .as_pthread_t();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            // SAFETY: `pthread_kill` is async-signal-safe, and the receiving thread never ends.
            let registered = unsafe {
                signal_hook::low_level::register(signal, move || {
                    libc::pthread_kill(receiver, signal);
                })
            };
            registered.context(REFUSED)?;
        }
        Ok(signals)
    }

    fn receive(&self, set: &libc::sigset_t) {
        let mut first: Option<Instant> = None;
        loop {
            let mut signal = 0;
            // SAFETY: both pointers are valid for the call.
            if unsafe { libc::sigwait(set, &mut signal) } != 0 {
                continue;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_of_earlier_threads_are_forwarded() -> Result<()> {
        let earlier = thread::spawn(thread::park);
        let training = BlockedSignals::block()?.watch()?.enable_graceful_shutdown();
        // SAFETY: the thread is joined below. Without a handler, the signal would end the process.
        unsafe { libc::pthread_kill(earlier.as_pthread_t(), libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(10);
        while requested() == 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(i32::from(REQUESTED.swap(0, Ordering::SeqCst)), libc::SIGTERM);
        drop(training);
        earlier.thread().unpark();
        assert!(earlier.join().is_ok());
        Ok(())
    }

    #[test]
    fn signals_are_unblocked_when_the_guard_is_dropped() -> Result<()> {
        let mask = || {
            let guard = BlockedSignals::block()?;
            // SAFETY: the set is initialised.
            anyhow::Ok(unsafe { libc::sigismember(&guard.previous, libc::SIGTERM) })
        };
        assert_eq!((mask()?, mask()?), (0, 0));
        Ok(())
    }
}
