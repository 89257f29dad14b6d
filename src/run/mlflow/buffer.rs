//! Bounded buffer between a run and the thread that sends its metrics.

use std::{
    collections::VecDeque,
    path::PathBuf,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Maximum number of buffered points: an hour without a server, at ten steps per second.
const CAPACITY: usize = 100_000;

/// Value of a metric at a step.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Point {
    pub key: String,
    pub value: f64,
    pub step: usize,
    /// Milliseconds since the Unix epoch.
    pub time: u64,
}

/// Final status of a run in MLflow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    Finished,
    Failed,
    /// Stopped by a signal.
    Killed,
}

impl Status {
    /// Name in MLflow's API.
    pub(super) fn name(self) -> &'static str {
        match self {
            Status::Finished => "FINISHED",
            Status::Failed => "FAILED",
            Status::Killed => "KILLED",
        }
    }

    /// Time after a run for its remaining points and status, and for the uploads that follow.
    ///
    /// The launcher gives a rank 5 seconds after another rank's failure, and 30 after a signal.
    pub(super) fn limits(self) -> (Duration, Duration) {
        let [wait, uploads] = match self {
            Status::Finished => [10, 60],
            Status::Failed => [3, 0],
            Status::Killed => [5, 5],
        };
        (Duration::from_secs(wait), Duration::from_secs(uploads))
    }
}

/// End of a run.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub status: Status,
    pub files: Vec<PathBuf>,
    /// Time at which points and status are given up.
    pub deadline: Instant,
}

/// Number of points received, and of those not sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub received: usize,
    pub unsent: usize,
}

#[derive(Default)]
pub(super) struct Buffer {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    points: VecDeque<Point>,
    received: usize,
    lost: usize,
    /// Whether the server has refused the run.
    closed: bool,
    end: Option<End>,
}

impl Buffer {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a point. It is lost if the buffer is full.
    pub fn push(&self, point: Point) {
        let state = &mut *self.state();
        state.received += 1;
        if state.closed || state.points.len() >= CAPACITY {
            state.lost += 1;
        } else {
            state.points.push_back(point);
        }
    }

    /// Sets the end of the run, which wakes the sender.
    pub fn finish(&self, end: End) {
        self.state().end.get_or_insert(end);
        self.changed.notify_all();
    }

    pub fn end(&self) -> Option<End> {
        self.state().end.clone()
    }

    pub fn counts(&self) -> Counts {
        let state = self.state();
        Counts { received: state.received, unsent: state.lost + state.points.len() }
    }

    /// Waits for `time`, or until the end of the run.
    pub fn wait(&self, time: Duration) {
        let ongoing = |state: &mut State| state.end.is_none();
        drop(self.changed.wait_timeout_while(self.state(), time, ongoing));
    }

    /// Returns copies of the first `count` points.
    pub fn first(&self, count: usize) -> Vec<Point> {
        self.state().points.iter().take(count).cloned().collect()
    }

    /// Removes the first `count` points after they were sent.
    pub fn sent(&self, count: usize) {
        self.state().points.drain(..count);
    }

    /// Removes the first `count` points, which the server has refused.
    pub fn refused(&self, count: usize) {
        let state = &mut *self.state();
        state.points.drain(..count);
        state.lost += count;
    }

    /// Drops all points, now and later.
    pub fn close(&self) {
        let state = &mut *self.state();
        state.closed = true;
        state.lost += state.points.len();
        state.points.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_buffer_counts_the_points_it_loses() {
        let buffer = Buffer::default();
        let push = || buffer.push(Point { key: "loss".into(), value: 0.5, step: 1, time: 0 });
        (0..CAPACITY + 3).for_each(|_| push());
        buffer.sent(10);
        assert_eq!(buffer.counts(), Counts { received: CAPACITY + 3, unsent: CAPACITY - 7 });
        buffer.close();
        push();
        assert_eq!(buffer.counts(), Counts { received: CAPACITY + 4, unsent: CAPACITY - 6 });
    }
}
