//! Detection of ranks that are slower than the others, from the times that every step reports.

use std::time::{Duration, Instant};

/// Number of steps of which the median is taken.
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
    /// Forward, and backward if it is not measured.
    pub forward: Duration,
    /// Backward, from the arrival of the first gradient.
    pub backward: Duration,
}

/// Number of times in [`BusyTime`].
const PHASES: usize = 3;

impl BusyTime {
    /// Adds the forward and backward pass of a batch, which began at `began` and has ended now. The first gradient of the
    /// step's last batch divides the times of all its batches.
    pub fn add_batch(&mut self, began: Instant, first_gradient: Option<Instant>) {
        let taken = began.elapsed().max(Duration::from_nanos(1));
        let all = self.forward + taken;
        let share = first_gradient.map_or(1.0, |at| at.duration_since(began).div_duration_f64(taken));
        self.forward = all.mul_f64(share.min(1.0));
        self.backward = all - self.forward;
    }

    /// Values that are summed over `ranks` ranks, after which [`Stragglers::update`] has the times of each.
    pub fn values(self, rank: usize, ranks: usize) -> Vec<f32> {
        let mut values = vec![0.0; PHASES * ranks];
        let own = [self.data, self.forward, self.backward].map(|time| time.as_secs_f32());
        values[PHASES * rank..][..PHASES].copy_from_slice(&own);
        values
    }
}

/// Finds slow ranks.
#[derive(Default)]
pub(super) struct Stragglers {
    /// Summed [`BusyTime::values`] of the steps in the window.
    window: Vec<Vec<f32>>,
    /// The slow rank of the last window, and in how many windows in a row it was slow.
    slow: Option<(usize, usize)>,
}

impl Stragglers {
    /// Adds the summed [`BusyTime::values`] of step `step`. Returns a warning when a rank was the slowest one in two
    /// windows in a row. A rank's time in a window is its median, so that a few interrupted steps do not count.
    pub fn update(&mut self, step: usize, values: &[f32]) -> Option<String> {
        self.window.push(values.to_vec());
        if self.window.len() < WINDOW {
            return None;
        }
        let of_ranks = |time: &dyn Fn(&[f32]) -> f32| -> Vec<f64> {
            let of_rank =
                |rank| median(self.window.iter().map(|step| time(&step[PHASES * rank..][..PHASES]).into()));
            (0..values.len() / PHASES).map(of_rank).collect()
        };
        let phases = std::array::from_fn(|phase| of_ranks(&|times| times[phase]));
        let found = slowest(&phases, &of_ranks(&|times| times.iter().sum()));
        self.window.clear();
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

/// The upper median, or 0 of nothing.
fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or_default()
}

/// The rank whose total time is farthest above the median of the others, if that is much: rank, phase, and the seconds of
/// the rank and the median in that phase.
fn slowest(phases: &[Vec<f64>; PHASES], total: &[f64]) -> Option<(usize, &'static str, f64, f64)> {
    let (rank, time) = total.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
    let others = |times: &[f64]| {
        median(times.iter().enumerate().filter(|(other, _)| *other != rank).map(|(_, time)| *time))
    };
    if total.len() < 2 || *time < (others(total) * RATIO).max(others(total) + MIN_EXCESS) {
        return None;
    }
    let is_divided = phases[2].iter().any(|time| *time > 0.0);
    let names = ["waiting for data", if is_divided { "forward" } else { "forward and backward" }, "backward"];
    let found = names.into_iter().zip(phases).map(|(name, times)| (rank, name, times[rank], others(times)));
    found.max_by(|(.., own, others), (.., own_2, others_2)| (own - others).total_cmp(&(own_2 - others_2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Warnings of steps in which each rank has these milliseconds of data and compute.
    fn warnings(stragglers: &mut Stragglers, from: usize, steps: usize, times: &[(u64, u64)]) -> Vec<String> {
        let step = |step| {
            let mut sums = vec![0.0; PHASES * times.len()];
            for (rank, (data, compute)) in times.iter().enumerate() {
                let [data, forward] = [*data, *compute].map(Duration::from_millis);
                let busy = BusyTime { data, forward, backward: Duration::ZERO };
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
    fn the_first_gradient_divides_the_times_of_all_batches() {
        let mut busy = BusyTime::default();
        let began = Instant::now() - Duration::from_secs(4);
        busy.add_batch(began, None);
        assert!(busy.forward >= Duration::from_secs(4) && busy.backward.is_zero(), "{busy:?}");
        busy.add_batch(began, Some(began + Duration::from_secs(1)));
        assert_eq!([busy.forward, busy.backward].map(|time| time.as_secs_f64().round()), [2.0, 6.0]);
        let slow = [[0.001, 0.002, 0.003], [0.001, 0.003, 0.009]];
        let phases = std::array::from_fn(|phase| slow.map(|rank: [f64; PHASES]| rank[phase]).to_vec());
        assert_eq!(slowest(&phases, &[0.006, 0.013]), Some((1, "backward", 0.009, 0.003)));
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
        let mut interrupted = Stragglers::default();
        for step in (1..60).step_by(3) {
            let found = warnings(&mut interrupted, step, 2, &[(0, 10), (0, 10)]);
            assert!(
                found.is_empty() && warnings(&mut interrupted, step + 2, 1, &[(0, 10), (0, 90)]).is_empty()
            );
        }
    }
}
