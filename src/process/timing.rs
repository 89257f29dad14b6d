//! Measurement of durations.

use anyhow::Result;
use std::time::{Duration, Instant};

/// Median of durations.
pub fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    let middle = times.len() / 2;
    match times.len() % 2 {
        _ if times.is_empty() => f64::NAN,
        1 => times[middle],
        _ => (times[middle - 1] + times[middle]) / 2.0,
    }
}

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
