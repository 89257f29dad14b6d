//! Device failures that no tensor reports.
//!
//! CubeCL runs tasks on one thread per device. A failed launch marks its outputs, and reading them is an
//! error. A panic on that thread is caught and logged and the task is dropped, so that results are wrong
//! without an error. Such failures are reported here, and training ends at the next step.

use crate::{Error, Result};
use std::sync::OnceLock;

static REPORTS: Reports = Reports(OnceLock::new());

/// Reports that `device` has dropped work. The first report is kept.
pub fn report(device: &str, reason: &str) {
    REPORTS.add(device, reason);
}

/// Checks that no device of this process has dropped work.
///
/// # Errors
/// The first [`report`].
pub fn check() -> Result<()> {
    REPORTS.check()
}

/// The first report.
struct Reports(OnceLock<Error>);

impl Reports {
    fn add(&self, device: &str, reason: &str) {
        self.0.get_or_init(|| Error::Device { device: device.into(), reason: reason.into() });
    }

    fn check(&self) -> Result<()> {
        self.0.get().map_or(Ok(()), |first| Err(first.clone()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_report_is_kept() {
        let reports = Reports(OnceLock::new());
        assert_eq!(reports.check(), Ok(()));
        reports.add("cuda:1", "first");
        reports.add("cuda:0", "second");
        assert_eq!(reports.check(), Err(Error::Device { device: "cuda:1".into(), reason: "first".into() }));
    }
}
