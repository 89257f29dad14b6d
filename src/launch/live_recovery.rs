//! `--recover live`: decides when ranks that have failed are replaced, while the others keep their processes.
//!
//! Pure state, without processes or a clock. It runs in the launcher of a job on one machine, and in the coordinator of a
//! job on several.

use super::{
    generation::{FromRank, Generation},
    outcome::{Decision, ExitReason, Failure, Outcome},
};
use crate::process::exit::OTHER_RANK_FAILED;
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

/// Time that a rank may stay stopped (SIGSTOP) while others wait for a new group.
const STOPPED: Duration = Duration::from_secs(1);
/// Time that a running rank has to notice that its group has failed.
const UNAWARE: Duration = Duration::from_secs(30);

/// What happens to the other ranks after one has failed, if restarts are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
pub enum Recover {
    /// All ranks restart.
    #[default]
    Restart,
    /// The failed rank is replaced, and the others keep their processes.
    Live,
}

/// The replacements of failed ranks in one round.
#[derive(Debug, Default)]
pub struct Replacements {
    world_size: usize,
    generation: usize,
    /// The last generation that may begin.
    last: usize,
    /// Ranks that can meet in another generation.
    ready: BTreeSet<usize>,
    /// Ranks that wait for the next generation, and since when.
    waiting: BTreeSet<usize>,
    since: Option<Instant>,
    /// Failures since the last generation began.
    failed: Vec<Failure>,
    /// Whether a rank has ended for another reason, so that the group cannot be complete again.
    over: bool,
    /// The next [`Decision::Kill`].
    kill_after: Duration,
}

impl Replacements {
    /// A round of `world_size` ranks, in which up to `replacements` generations may follow the first one.
    pub fn new(world_size: usize, replacements: usize) -> Self {
        Self { world_size, last: replacements, kill_after: STOPPED, ..Self::default() }
    }

    /// Records a message of a rank.
    pub fn hear(&mut self, rank: usize, message: FromRank, now: Instant) {
        match message {
            FromRank::Ready => _ = self.ready.insert(rank),
            FromRank::MustRestart => _ = self.ready.remove(&rank),
            FromRank::Lost(generation) if generation == self.generation => {
                self.waiting.insert(rank);
                self.since.get_or_insert(now);
            }
            FromRank::Lost(_) => {}
        }
    }

    /// Records the outcome of a rank, and returns it if it cannot be repaired.
    pub fn observe(&mut self, outcome: Outcome) -> Option<Outcome> {
        match outcome {
            Outcome::Failed(failure) if self.is_repairable(&failure) => {
                self.waiting.remove(&failure.rank);
                self.failed.push(failure);
                None
            }
            other => {
                self.over = true;
                Some(other)
            }
        }
    }

    fn is_repairable(&self, failure: &Failure) -> bool {
        // The rank has found that its state cannot be kept.
        let gives_up = failure.how == ExitReason::Exited(OTHER_RANK_FAILED.into());
        let stopped = failure.how.stop_signal().is_some();
        let others = (0..self.world_size).filter(|rank| *rank != failure.rank);
        let all_ready = others.into_iter().all(|rank| self.ready.contains(&rank));
        self.generation < self.last && self.world_size > 1 && all_ready && !gives_up && !stopped && !self.over
    }

    /// What is to be done now so that the group can be complete again.
    ///
    /// The port of a generation is still to be reserved.
    pub fn repair(&mut self, now: Instant) -> Option<Decision> {
        if self.over {
            return None;
        }
        let all_wait = self.waiting.len() == self.world_size && self.generation < self.last;
        if !self.failed.is_empty() || all_wait {
            self.generation += 1;
            self.waiting.clear();
            (self.since, self.kill_after) = (None, STOPPED);
            let failures = std::mem::take(&mut self.failed);
            let generation = Generation { number: self.generation, master_port: 0 };
            return Some(Decision::Replace { generation, failures });
        }
        let only_stopped = self.kill_after == STOPPED;
        if self.since.is_none_or(|since| now < since + self.kill_after) {
            return None;
        }
        self.kill_after = if only_stopped { UNAWARE } else { 2 * self.kill_after };
        let ranks = (0..self.world_size).filter(|rank| !self.waiting.contains(rank)).collect();
        Some(Decision::Kill { ranks, only_stopped })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn killed(rank: usize) -> Outcome {
        Outcome::failure(rank, ExitReason::Killed(libc::SIGKILL))
    }

    fn started(world_size: usize, replacements: usize) -> (Replacements, Instant) {
        let (mut live, now) = (Replacements::new(world_size, replacements), Instant::now());
        (0..world_size).for_each(|rank| live.hear(rank, FromRank::Ready, now));
        (live, now)
    }

    fn replaced(repair: Option<Decision>) -> (usize, Vec<usize>) {
        let Some(Decision::Replace { generation, failures }) = repair else { panic!("{repair:?}") };
        (generation.number, failures.iter().map(|failure| failure.rank).collect())
    }

    #[test]
    fn other_ends_are_not_repaired() {
        for how in [OTHER_RANK_FAILED.into(), 128 + libc::SIGTERM].map(ExitReason::Exited) {
            let (mut live, _) = started(2, 5);
            let ended = Outcome::failure(0, how);
            assert_eq!(live.observe(ended.clone()), Some(ended));
            assert_eq!(live.observe(killed(1)), Some(killed(1)), "one has ended");
        }
        let (mut live, now) = started(2, 5);
        live.hear(0, FromRank::MustRestart, now);
        assert_eq!(live.observe(killed(1)), Some(killed(1)), "rank 0 cannot continue");
        let (mut live, _) = started(2, 5);
        assert_eq!(live.observe(Outcome::Done), Some(Outcome::Done));
        assert_eq!(live.observe(killed(1)), Some(killed(1)), "rank 0 has succeeded");
        let mut unknown = Replacements::new(2, 5);
        assert_eq!(unknown.observe(killed(1)), Some(killed(1)), "rank 0 is another program");
    }

    #[test]
    fn ranks_that_do_not_wait_with_the_others_are_killed() {
        let (mut live, now) = started(3, 5);
        live.hear(0, FromRank::Lost(0), now);
        live.hear(2, FromRank::Lost(0), now);
        assert_eq!(live.repair(now), None);
        let kill = |only_stopped| Some(Decision::Kill { ranks: vec![1], only_stopped });
        assert_eq!(live.repair(now + STOPPED), kill(true));
        assert_eq!(live.repair(now + STOPPED), None);
        assert_eq!(live.repair(now + UNAWARE), kill(false));
        assert_eq!(live.observe(killed(1)), None);
        assert_eq!(replaced(live.repair(now + UNAWARE)), (1, vec![1]));
        // A message of the last generation is late.
        live.hear(0, FromRank::Lost(0), now);
        assert_eq!(live.repair(now + 2 * UNAWARE), None);
    }

    #[test]
    fn a_group_that_has_lost_no_rank_meets_again() {
        let (mut live, now) = started(2, 1);
        (0..2).for_each(|rank| live.hear(rank, FromRank::Lost(0), now));
        assert_eq!(replaced(live.repair(now)), (1, vec![]));
    }
}
