//! Measurement of durations.

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
