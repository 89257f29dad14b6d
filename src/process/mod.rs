//! Process utilities: console output, stop signals, exit codes, time and atomic file writes.

pub mod atomic_file;
pub mod console;
pub mod exit;
pub mod stop;
pub mod timing;

use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since the Unix epoch.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
