//! The wait for other ranks at the rendezvous, with its deadline and progress reports.

use crate::{Error, Result};
use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time between two reports of the missing ranks.
pub(crate) const REPORT_EVERY: Duration = Duration::from_secs(10);
/// Time between two calls of [`Cancel`].
const CANCEL_EVERY: Duration = Duration::from_millis(50);

/// Called with problems that do not fail a call, such as ranks that are missing while `init` waits.
#[derive(Clone)]
pub(crate) struct Report(pub Arc<dyn Fn(&Error) + Send + Sync>);

debug_text! { Report, "Report" }

/// Tells whether a wait is to end early.
#[derive(Clone)]
pub(crate) struct Cancel(pub Arc<dyn Fn() -> bool + Send + Sync>);

debug_text! { Cancel, "Cancel" }

/// The wait of one `init`.
pub(crate) struct RendezvousWait {
    begun: Instant,
    reported: Instant,
    pub deadline: Instant,
    report: Option<Report>,
    cancel: Option<Cancel>,
}

impl RendezvousWait {
    pub fn new(timeout: Duration, report: Option<Report>, cancel: Option<Cancel>) -> Self {
        let begun = Instant::now();
        RendezvousWait { begun, reported: begun, deadline: super::deadline(timeout), report, cancel }
    }

    /// Whether the caller has ended the wait.
    pub fn is_cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|Cancel(cancel)| cancel())
    }

    /// `until`, or the time at which cancellation is checked again.
    pub fn checked(&self, until: Instant) -> Instant {
        if self.cancel.is_some() { until.min(Instant::now() + CANCEL_EVERY) } else { until }
    }

    /// Time until the deadline.
    pub fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub fn seconds(&self) -> f64 {
        self.begun.elapsed().as_secs_f64()
    }

    /// The error for the missing ranks `absent`.
    pub fn error(&self, address: &str, absent: String) -> Error {
        Error::Rendezvous { address: address.into(), seconds: self.seconds(), absent }
    }

    /// Pauses before another attempt to reach rank 0, and reports what is missing, if a report is due.
    ///
    /// # Errors
    /// [`Error::Rendezvous`] if the pause would end after `until`, or the wait is cancelled.
    pub fn pause(
        &mut self,
        pause: Duration,
        until: Instant,
        address: &str,
        absent: impl Fn() -> String,
    ) -> Result<()> {
        if Instant::now() + pause > until || self.is_cancelled() {
            return Err(self.error(address, absent()));
        }
        self.report(address, absent);
        thread::sleep(pause);
        Ok(())
    }

    /// Time of the next report.
    pub fn next_report(&self) -> Instant {
        self.reported + REPORT_EVERY
    }

    /// Reports the missing ranks `absent`, if a report is due.
    pub fn report(&mut self, address: &str, absent: impl FnOnce() -> String) {
        if Instant::now() < self.next_report() {
            return;
        }
        self.reported = Instant::now();
        if let Some(Report(report)) = &self.report {
            report(&self.error(address, absent()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn due_reports_name_the_missing_ranks() {
        let told: Arc<Mutex<Vec<String>>> = Arc::default();
        let heard = told.clone();
        let report = Report(Arc::new(move |error: &Error| {
            heard.lock().unwrap().push(error.to_string());
        }));
        let mut wait = RendezvousWait::new(Duration::from_secs(60), Some(report), None);
        wait.report("here", || unreachable!("it is too early"));
        wait.reported -= REPORT_EVERY;
        wait.begun -= REPORT_EVERY;
        wait.report("here:1", || "rank 3".into());
        wait.report("here:1", || unreachable!("it was just told"));
        assert_eq!(*told.lock().unwrap(), ["rendezvous at here:1: after 10 s still waiting for rank 3"]);
    }
}
