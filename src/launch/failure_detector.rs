//! Determines which failure ends a round, and with `--recover live` which failures are repaired.

use super::{
    live_recovery::Replacements,
    outcome::{Decision, ExitReason, Failure, News, Outcome},
};
use crate::process::exit::OTHER_RANK_FAILED;
use std::time::{Duration, Instant};

/// Time that the other ranks have to exit after one has failed.
pub const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time that all ranks have to finish their step and write a checkpoint after a stop signal.
pub const AFTER_SIGNAL: Duration = Duration::from_secs(30);

/// Determines the outcome of a round from those of its ranks and machines, in the order in which they arrive.
///
/// It runs in the launcher of a job on one machine, and in the coordinator of a job on several.
#[derive(Debug)]
pub struct FailureDetector {
    /// Number of ranks that have not ended.
    running: usize,
    /// The first outcome that ends the round at once.
    first: Option<Outcome>,
    /// A rank that failed because of another rank, and how long to wait for that other rank's failure.
    consequence: Option<(Failure, Instant)>,
    /// A rank that exited because of this stop signal, and how long to wait for the others to finish the same
    /// step.
    stopped: Option<(Failure, i32, Instant)>,
    live: Replacements,
}

impl FailureDetector {
    /// A round of `ranks` ranks on all machines, whose failures are repaired up to `replacements` times before the first
    /// rank has ended.
    pub fn new(ranks: usize, replacements: usize) -> Self {
        let live = Replacements::new(ranks, replacements);
        Self { running: ranks, first: None, consequence: None, stopped: None, live }
    }

    /// What is to be done, if anything.
    pub fn decide(&mut self, now: Instant) -> Option<Decision> {
        self.live.repair(now).or_else(|| self.outcome(now).map(Decision::End))
    }

    /// Records news of the round.
    pub fn observe(&mut self, news: News, now: Instant) {
        let outcome = match news {
            News::Message(rank, message) => return self.live.hear(rank, message, now),
            News::Outcome(outcome) => self.live.observe(outcome),
        };
        let Some(outcome) = outcome else { return };
        let failure = match outcome {
            Outcome::Done => return self.running = self.running.saturating_sub(1),
            Outcome::Failed(failure) => failure,
            Outcome::Stopped { .. } | Outcome::Lost { .. } => {
                self.first.get_or_insert(outcome);
                return;
            }
        };
        self.running = self.running.saturating_sub(1);
        if failure.how == ExitReason::Exited(OTHER_RANK_FAILED.into()) {
            self.consequence.get_or_insert((failure, now + AFTER_FAILURE));
        } else if let Some(signal) = failure.how.stop_signal() {
            self.stopped.get_or_insert((failure, signal, now + AFTER_SIGNAL));
        } else {
            self.first.get_or_insert(Outcome::Failed(failure));
        }
    }

    /// The outcome of the round, if it is decided.
    fn outcome(&self, now: Instant) -> Option<Outcome> {
        let all = self.running == 0;
        if self.first.is_some() {
            return self.first.clone();
        }
        match (&self.consequence, &self.stopped) {
            (Some((failure, until)), _) => (all || now > *until).then(|| Outcome::Failed(failure.clone())),
            (None, Some((_, signal, _))) if all => Some(Outcome::Stopped { signal: *signal }),
            // The others were not asked to stop: this rank did not exit together with them.
            (None, Some((failure, _, until))) => (now > *until).then(|| Outcome::Failed(failure.clone())),
            (None, None) => all.then_some(Outcome::Done),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_cause_ends_a_round_and_a_consequence_waits_for_it() {
        let now = Instant::now();
        let failed = |rank, code| Outcome::failure(rank, ExitReason::Exited(code));
        let mut detector = FailureDetector::new(3, 0);
        detector.observe(News::Outcome(failed(0, OTHER_RANK_FAILED.into())), now);
        assert_eq!(detector.outcome(now), None);
        assert_eq!(detector.outcome(now + 2 * AFTER_FAILURE), Some(failed(0, OTHER_RANK_FAILED.into())));
        detector.observe(News::Outcome(failed(1, 3)), now);
        detector.observe(News::Outcome(failed(2, 4)), now);
        assert_eq!(detector.outcome(now), Some(failed(1, 3)));
    }

    #[test]
    fn all_ranks_must_be_done_or_stopped() {
        let now = Instant::now();
        let mut detector = FailureDetector::new(2, 0);
        detector.observe(News::Outcome(Outcome::Done), now);
        assert_eq!(detector.outcome(now + 2 * AFTER_SIGNAL), None);
        let stopped = Outcome::failure(1, ExitReason::Exited(128 + libc::SIGTERM));
        detector.observe(News::Outcome(stopped.clone()), now);
        assert_eq!(detector.outcome(now), Some(Outcome::Stopped { signal: libc::SIGTERM }));
        let mut detector = FailureDetector::new(2, 0);
        detector.observe(News::Outcome(stopped.clone()), now);
        assert_eq!(detector.outcome(now), None);
        assert_eq!(detector.outcome(now + 2 * AFTER_SIGNAL), Some(stopped));
    }
}
