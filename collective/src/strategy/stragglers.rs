//! Detection of ranks that are slower than the others, from the times that every step reports.

use std::time::Duration;

/// Number of steps over which times are averaged.
const WINDOW: usize = 10;
/// A rank is slow if it takes this multiple of the others' median, as in NVIDIA's resiliency extension, whose default for
/// the relative speed of a straggler is 0.75.
const RATIO: f64 = 1.0 / 0.75;
/// Differences below it are not reported.
const MIN_EXCESS: f64 = 0.002;

/// Times of one rank in a step, before it waits for the others.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BusyTime {
    /// Waiting for batches.
    pub data: Duration,
    /// Forward and backward.
    pub compute: Duration,
}

impl BusyTime {
    /// Values that are summed over `ranks` ranks, after which [`Stragglers::update`] has the times of each.
    pub fn values(self, rank: usize, ranks: usize) -> Vec<f32> {
        let mut values = vec![0.0; 2 * ranks];
        values[2 * rank..2 * rank + 2]
            .copy_from_slice(&[self.data, self.compute].map(|time| time.as_secs_f32()));
        values
    }
}

/// Finds slow ranks.
#[derive(Default)]
pub(super) struct Stragglers {
    steps: usize,
    /// Seconds of data and compute in the window, by rank.
    sums: Vec<[f64; 2]>,
    /// The slow rank of the last window, and in how many windows in a row it was slow.
    slow: Option<(usize, usize)>,
}

impl Stragglers {
    /// Adds the summed [`BusyTime::values`] of step `step`. Returns a warning when a rank was the slowest one in two
    /// windows in a row.
    pub fn update(&mut self, step: usize, values: &[f32]) -> Option<String> {
        let (times, _) = values.as_chunks::<2>();
        self.sums.resize(times.len(), [0.0; 2]);
        for (sum, time) in self.sums.iter_mut().zip(times) {
            sum[0] += f64::from(time[0]);
            sum[1] += f64::from(time[1]);
        }
        self.steps += 1;
        if self.steps < WINDOW {
            return None;
        }
        let means: Vec<[f64; 2]> = self.sums.iter().map(|sum| sum.map(|sum| sum / WINDOW as f64)).collect();
        (self.steps, self.sums) = (0, Vec::new());
        let found = slowest(&means);
        let windows =
            |rank| self.slow.filter(|(before, _)| *before == rank).map_or(1, |(_, windows)| windows + 1);
        self.slow = found.map(|(rank, ..)| (rank, windows(rank)));
        let (rank, phase, own, others) =
            found.filter(|_| self.slow.is_some_and(|(_, windows)| windows == 2))?;
        let [own, others] = [own, others].map(|seconds| seconds * 1e3);
        Some(format!(
            "rank {rank} is slow: {phase} takes {own:.1} ms per step, the median of the other ranks is {others:.1} ms \
             (steps {} to {step})",
            step + 1 - WINDOW
        ))
    }
}

/// The rank whose time is farthest above the median of the others, if that is much: rank, phase, and the seconds of the
/// rank and the median in that phase.
fn slowest(times: &[[f64; 2]]) -> Option<(usize, &'static str, f64, f64)> {
    let total = |time: &[f64; 2]| time[0] + time[1];
    let (rank, time) = times.iter().enumerate().max_by(|a, b| total(a.1).total_cmp(&total(b.1)))?;
    let median = |of: fn(&[f64; 2]) -> f64| {
        let others = times.iter().enumerate().filter(|(other, _)| *other != rank);
        let mut others: Vec<f64> = others.map(|(_, time)| of(time)).collect();
        others.sort_unstable_by(f64::total_cmp);
        others.get(others.len() / 2).copied()
    };
    let (data, compute) = (median(|time| time[0])?, median(|time| time[1])?);
    let others = median(|time| time[0] + time[1])?;
    if total(time) < (others * RATIO).max(others + MIN_EXCESS) {
        return None;
    }
    Some(if time[0] - data > time[1] - compute {
        (rank, "waiting for data", time[0], data)
    } else {
        (rank, "forward and backward", time[1], compute)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warnings of steps in which each rank has these milliseconds of data and compute.
    fn warnings(stragglers: &mut Stragglers, from: usize, steps: usize, times: &[(u64, u64)]) -> Vec<String> {
        let step = |step| {
            let mut sums = vec![0.0; 2 * times.len()];
            for (rank, (data, compute)) in times.iter().enumerate() {
                let busy =
                    BusyTime { data: Duration::from_millis(*data), compute: Duration::from_millis(*compute) };
                sums.iter_mut().zip(busy.values(rank, times.len())).for_each(|(sum, value)| *sum += value);
            }
            stragglers.update(step, &sums)
        };
        (from..from + steps).filter_map(step).collect()
    }

    #[test]
    fn a_slow_rank_is_named_once_with_its_phase_within_20_steps() {
        let mut found = Stragglers::default();
        let slow = [(1, 10), (1, 11), (1, 30), (1, 9)];
        let wanted = "rank 2 is slow: forward and backward takes 30.0 ms per step, the median of the other ranks is \
                      10.0 ms (steps 11 to 20)";
        assert_eq!(warnings(&mut found, 1, 50, &slow), [wanted]);
        // Another rank and phase.
        let wanted = "rank 0 is slow: waiting for data takes 9.0 ms per step, the median of the other ranks is 1.0 ms \
                      (steps 61 to 70)";
        assert_eq!(warnings(&mut found, 51, 30, &[(9, 10), (1, 10)]), [wanted]);
        // It recovers, and is named again when it is slow again.
        assert!(warnings(&mut found, 81, 10, &[(1, 10), (1, 10)]).is_empty());
        assert_eq!(warnings(&mut found, 91, 20, &[(9, 10), (1, 10)]).len(), 1);
    }

    #[test]
    fn small_and_short_differences_are_not_reported() {
        for (steps, times) in [
            (60, vec![(0, 10), (0, 12)]),
            (60, vec![(0, 1), (0, 2)]),
            (60, vec![(0, 100)]),
            (10, vec![(0, 10), (0, 50)]),
        ] {
            assert!(warnings(&mut Stragglers::default(), 1, steps, &times).is_empty(), "{times:?}");
        }
    }
}
