//! Elapsed time and processor time.

use anyhow::Result;
use std::time::{Duration, Instant};

/// Runs `act` and returns its result and duration.
///
/// # Errors
/// Those of `act`.
pub fn timed<R>(act: impl FnOnce() -> Result<R>) -> Result<(R, Duration)> {
    let begun = Instant::now();
    let result = act()?;
    Ok((result, begun.elapsed()))
}

/// Processor time of all threads of this process in seconds.
///
/// Other load on the machine affects it less than elapsed time.
pub fn processor_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it writes to `time` only, and this clock exists on every Unix.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
