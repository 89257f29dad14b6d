//! Ctrl-C and SIGTERM in a rank: before training they end it at once; during training they ask all
//! ranks to finish the step, keep a checkpoint and leave; a second one ends this rank at once.

use anyhow::{Context, Result};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// A terminal and a launcher may both pass one Ctrl-C on: what follows the first signal within this
/// time is the same request.
pub const ECHO: Duration = Duration::from_millis(500);

/// Watches for signals from its creation to the end of the process.
#[derive(Clone)]
pub struct StopSignals {
    training: Arc<AtomicBool>,
    asked: Arc<AtomicU8>,
}

impl StopSignals {
    /// To be called before any other thread is started: those inherit that signals are not for them,
    /// so that no system call of theirs is ever interrupted.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn watch() -> Result<Self> {
        let signals = Self { training: Arc::default(), asked: Arc::default() };
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
                // SAFETY: ends the process without running anything else of it.
                unsafe { libc::_exit(128 + signal) };
            }
            first.get_or_insert_with(Instant::now);
            let number = u8::try_from(signal).unwrap_or(u8::MAX);
            // The first signal decides the exit code.
            let _ = self.asked.compare_exchange(0, number, Ordering::SeqCst, Ordering::SeqCst);
        }
    }

    /// From now on there is something to finish.
    pub fn training_begins(&self) {
        self.training.store(true, Ordering::SeqCst);
    }

    /// The signal that came, or 0.
    pub fn asked(&self) -> u8 {
        self.asked.load(Ordering::SeqCst)
    }
}

/// What a signal is called.
pub fn name(signal: u8) -> String {
    match i32::from(signal) {
        libc::SIGINT => "SIGINT".into(),
        libc::SIGTERM => "SIGTERM".into(),
        other => format!("signal {other}"),
    }
}
