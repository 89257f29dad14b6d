//! Device failures that no tensor reports.
//!
//! CubeCL runs tasks on one thread per device. A failed launch marks its outputs, and reading them is an
//! error. A panic on that thread is caught and logged and the task is dropped, so that results are wrong
//! without an error. Such failures are reported here, and training ends at the next step.

use crate::{Error, Result};
use std::sync::OnceLock;

/// The first report.
static FIRST: OnceLock<Error> = OnceLock::new();

/// Reports that `device` has dropped work. The first report is kept.
pub fn report(device: &str, reason: &str) {
    FIRST.get_or_init(|| Error::Device { device: device.into(), reason: reason.into() });
}

/// Checks that no device of this process has dropped work.
///
/// # Errors
/// The first [`report`].
pub fn check() -> Result<()> {
    FIRST.get().map_or(Ok(()), |first| Err(first.clone()))
}
