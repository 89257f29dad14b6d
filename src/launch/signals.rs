//! Stop signals received by the launcher.

use crate::process::stop::{self, ECHO};
use anyhow::{Context, Result};
use signal_hook::{consts::SIGHUP, iterator};
use std::{
    cell::{RefCell, RefMut},
    time::Instant,
};

/// The stop signals received so far.
#[derive(Debug, Default)]
pub struct Signals(RefCell<Received>);

#[derive(Debug, Default)]
struct Received {
    handlers: Option<iterator::Signals>,
    first: Option<(i32, Instant)>,
    insisted: bool,
}

impl Signals {
    /// Installs handlers for the stop signals of ranks and for SIGHUP. Signals that this process ignores, such as
    /// SIGHUP under `nohup`, stay ignored.
    ///
    /// # Errors
    /// If a handler cannot be installed.
    pub fn catch() -> Result<Self> {
        let ignored = |signal| stop::handler(signal) == Some(libc::SIG_IGN);
        let signals = stop::SIGNALS.into_iter().chain([SIGHUP]).filter(|signal| !ignored(*signal));
        let handlers = iterator::Signals::new(signals).context("cannot install the signal handlers")?;
        Ok(Signals(RefCell::new(Received { handlers: Some(handlers), ..Received::default() })))
    }

    /// The first signal, if one was received.
    pub fn first(&self) -> Option<i32> {
        self.poll().first.map(|(signal, _)| signal)
    }

    /// Whether a second signal was received, which ends the grace period.
    pub fn insisted(&self) -> bool {
        self.poll().insisted
    }

    fn poll(&self) -> RefMut<'_, Received> {
        let mut received = self.0.borrow_mut();
        let pending: Vec<i32> =
            received.handlers.as_mut().map(|handlers| handlers.pending().collect()).unwrap_or_default();
        pending.into_iter().for_each(|signal| received.add(signal, Instant::now()));
        received
    }
}

impl Received {
    fn add(&mut self, signal: i32, now: Instant) {
        let (_, first) = *self.first.get_or_insert((signal, now));
        self.insisted |= now > first + ECHO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use signal_hook::consts::{SIGINT, SIGTERM};
    use std::time::Duration;

    #[test]
    fn the_first_signal_counts_and_the_second_insists() {
        let (mut received, begun) = (Received::default(), Instant::now());
        received.add(SIGTERM, begun);
        received.add(SIGTERM, begun + Duration::from_millis(400));
        assert_eq!((received.first, received.insisted), (Some((SIGTERM, begun)), false));
        received.add(SIGINT, begun + Duration::from_millis(600));
        assert_eq!((received.first, received.insisted), (Some((SIGTERM, begun)), true));
    }
}
