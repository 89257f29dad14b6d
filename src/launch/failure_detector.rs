//! Determines which failure ends a round, and with `--recover live` which failures are repaired: ranks that have failed
//! are replaced, while the others keep their processes. Processes have the numbers of their ranks at the start of the
//! round, also when a lost machine has changed the ranks.
//!
//! It has no processes and no clock. It runs in the launcher of a job on one machine, and in the coordinator of a
//! job on several.

use super::{
    generation::{FromRank, Generation},
    outcome::{Decision, ExitReason, Failure, News, Outcome},
    port::ReservedPort,
};
use anyhow::Result;
use std::{
    collections::BTreeSet,
    ops::Range,
    time::{Duration, Instant},
};

/// Time that the other ranks have to exit after one has failed.
pub const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time that all ranks have to finish their step and write a checkpoint after a stop signal.
pub const AFTER_SIGNAL: Duration = Duration::from_secs(30);
/// Time that a rank may stay stopped (SIGSTOP) while others wait for a new group.
const STOPPED: Duration = Duration::from_secs(1);
/// Time that a running rank has to notice that its group has failed.
const UNAWARE: Duration = Duration::from_secs(30);

/// Determines what is to be done in a round because of the outcomes of its ranks and machines, in the order of their
/// arrival.
#[derive(Debug, Default)]
pub struct FailureDetector {
    /// The ranks of the round, without those of lost machines.
    ranks: BTreeSet<usize>,
    /// Outcomes after which the group cannot be complete again, and when they arrived.
    ended: Vec<(Outcome, Instant)>,
    generation: usize,
    /// The last generation that may begin.
    last_generation: usize,
    /// Where rank 0 listens in the current generation, unless the user has chosen the port.
    port: Option<ReservedPort>,
    /// Ranks that can meet in another generation.
    ready: BTreeSet<usize>,
    /// Ranks that wait for the next generation, and since when the first of them does.
    waiting: BTreeSet<usize>,
    since: Option<Instant>,
    /// Failures to repair, since the last generation began.
    failed: Vec<Failure>,
    /// Lost machines without which the next generation begins.
    lost: Vec<Outcome>,
    /// The next [`Decision::Kill`].
    kill_after: Duration,
}

impl FailureDetector {
    /// A round of `ranks` ranks on all machines, in which up to `replacements` generations may follow the first one.
    pub fn new(ranks: usize, replacements: usize) -> Self {
        let ranks = (0..ranks).collect();
        Self { ranks, last_generation: replacements, kill_after: STOPPED, ..Self::default() }
    }

    /// Reserves the port of a generation, in place of that of the one before.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn reserve_port(&mut self) -> Result<u16> {
        Ok(self.port.insert(ReservedPort::new()?).number)
    }

    /// What is to be done, if anything.
    ///
    /// # Errors
    /// Those of [`Self::reserve_port`].
    pub fn decide(&mut self, now: Instant) -> Result<Option<Decision>> {
        Ok(self.repair(now)?.or_else(|| self.outcome(now).map(Decision::End)))
    }

    /// Records news of the round.
    pub fn observe(&mut self, news: News, now: Instant) {
        match news {
            News::Message(rank, message) => self.hear(rank, message, now),
            News::Outcome(Outcome::Failed(failure)) if self.is_repairable(&failure) => {
                self.waiting.remove(&failure.rank);
                self.failed.push(failure);
            }
            News::Outcome(outcome) => self.ended.push((outcome, now)),
        }
    }

    /// Records that the machine with `ranks` is lost, without which the job may continue. Returns whether the other ranks do
    /// so in the next generation.
    pub fn lose(&mut self, ranks: Range<usize>, lost: &Outcome) -> bool {
        let can_continue = self.can_continue_without(|rank| ranks.contains(&rank));
        if can_continue {
            self.ranks.retain(|rank| !ranks.contains(rank));
            self.waiting.retain(|rank| !ranks.contains(rank));
            self.failed.retain(|failure| !ranks.contains(&failure.rank));
            self.lost.push(lost.clone());
        }
        can_continue
    }

    /// The outcome of the round, if it is decided.
    fn outcome(&self, now: Instant) -> Option<Outcome> {
        let all = self.ended.len() >= self.ranks.len();
        let (mut consequence, mut stopped) = (None, None);
        for (outcome, at) in &self.ended {
            let how = match outcome {
                Outcome::Done => continue,
                Outcome::Failed(failure) => Some(failure.how),
                Outcome::Stopped { .. } | Outcome::Lost { .. } => None,
            };
            if how.is_some_and(ExitReason::is_consequence) {
                // The failure of the other rank may still arrive.
                consequence.get_or_insert((outcome, *at + AFTER_FAILURE));
            } else if let Some(signal) = how.and_then(ExitReason::stop_signal) {
                // The others may finish the same step.
                stopped.get_or_insert((outcome, signal, *at + AFTER_SIGNAL));
            } else {
                return Some(outcome.clone());
            }
        }
        match (consequence, stopped) {
            (Some((failure, until)), _) => (all || now > until).then(|| failure.clone()),
            (None, Some((_, signal, _))) if all => Some(Outcome::Stopped { signal }),
            // The others were not asked to stop: this rank did not exit together with them.
            (None, Some((failure, _, until))) => (now > until).then(|| failure.clone()),
            (None, None) => all.then_some(Outcome::Done),
        }
    }

    /// Records a message of a rank.
    fn hear(&mut self, rank: usize, message: FromRank, now: Instant) {
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

    fn is_repairable(&self, failure: &Failure) -> bool {
        self.can_continue_without(|rank| rank == failure.rank)
            // Otherwise the rank has found that its state cannot be kept.
            && !failure.how.is_consequence()
            && failure.how.stop_signal().is_none()
    }

    /// Whether the group can continue in another generation after these ranks have ended.
    fn can_continue_without(&self, ended: impl Fn(usize) -> bool) -> bool {
        let mut others = self.ranks.iter().filter(|rank| !ended(**rank)).peekable();
        self.generation < self.last_generation
            && others.peek().is_some()
            && others.all(|rank| self.ready.contains(rank))
            && self.ended.is_empty()
    }

    /// What is to be done now so that the group can be complete again.
    fn repair(&mut self, now: Instant) -> Result<Option<Decision>> {
        if !self.ended.is_empty() {
            return Ok(None);
        }
        let all_wait = self.waiting.len() == self.ranks.len() && self.generation < self.last_generation;
        if !self.failed.is_empty() || !self.lost.is_empty() || all_wait {
            self.generation += 1;
            self.waiting.clear();
            (self.since, self.kill_after) = (None, STOPPED);
            let (failures, lost) = (std::mem::take(&mut self.failed), std::mem::take(&mut self.lost));
            let generation = Generation { number: self.generation, master_port: self.reserve_port()? };
            return Ok(Some(Decision::Replace { generation, failures, lost }));
        }
        let only_stopped = self.kill_after == STOPPED;
        if self.since.is_none_or(|since| now < since + self.kill_after) {
            return Ok(None);
        }
        self.kill_after = if only_stopped { UNAWARE } else { 2 * self.kill_after };
        let ranks = self.ranks.difference(&self.waiting).copied().collect();
        Ok(Some(Decision::Kill { ranks, only_stopped }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::exit::OTHER_RANK_FAILED;

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

    fn killed(rank: usize) -> Outcome {
        Outcome::failure(rank, ExitReason::Killed(libc::SIGKILL))
    }

    fn started(world_size: usize, replacements: usize) -> (FailureDetector, Instant) {
        let (mut live, now) = (FailureDetector::new(world_size, replacements), Instant::now());
        (0..world_size).for_each(|rank| live.hear(rank, FromRank::Ready, now));
        (live, now)
    }

    fn repair(live: &mut FailureDetector, now: Instant) -> Option<Decision> {
        live.repair(now).expect("a free port")
    }

    fn replaced(repair: Option<Decision>) -> (usize, Vec<usize>) {
        let Some(Decision::Replace { generation, failures, .. }) = repair else { panic!("{repair:?}") };
        (generation.number, failures.iter().map(|failure| failure.rank).collect())
    }

    #[test]
    fn other_ends_are_not_repaired() {
        let is_repaired = |live: &mut FailureDetector, outcome, now| {
            live.observe(News::Outcome(outcome), now);
            repair(live, now).is_some()
        };
        for how in [OTHER_RANK_FAILED.into(), 128 + libc::SIGTERM].map(ExitReason::Exited) {
            let (mut live, now) = started(2, 5);
            assert!(!is_repaired(&mut live, Outcome::failure(0, how), now), "{how:?}");
            assert!(!is_repaired(&mut live, killed(1), now), "one has ended");
        }
        let (mut live, now) = started(2, 5);
        live.hear(0, FromRank::MustRestart, now);
        assert!(!is_repaired(&mut live, killed(1), now), "rank 0 cannot continue");
        let (mut live, now) = started(2, 5);
        live.observe(News::Outcome(Outcome::Done), now);
        assert!(!is_repaired(&mut live, killed(1), now), "rank 0 has succeeded");
        let mut unknown = FailureDetector::new(2, 5);
        assert!(!is_repaired(&mut unknown, killed(1), now), "rank 0 is another program");
    }

    #[test]
    fn ranks_that_do_not_wait_with_the_others_are_killed() {
        let (mut live, now) = started(3, 5);
        live.hear(0, FromRank::Lost(0), now);
        live.hear(2, FromRank::Lost(0), now);
        assert_eq!(repair(&mut live, now), None);
        let kill = |only_stopped| Some(Decision::Kill { ranks: vec![1], only_stopped });
        assert_eq!(repair(&mut live, now + STOPPED), kill(true));
        assert_eq!(repair(&mut live, now + STOPPED), None);
        assert_eq!(repair(&mut live, now + UNAWARE), kill(false));
        live.observe(News::Outcome(killed(1)), now);
        assert_eq!(replaced(repair(&mut live, now + UNAWARE)), (1, vec![1]));
        // A message of the last generation is late.
        live.hear(0, FromRank::Lost(0), now);
        assert_eq!(repair(&mut live, now + 2 * UNAWARE), None);
    }

    #[test]
    fn the_ranks_of_a_lost_machine_are_not_replaced() {
        let lost = Outcome::Lost { node: 1, reason: "(host) is lost".into() };
        let (mut live, now) = started(4, 3);
        live.observe(News::Outcome(killed(2)), now);
        assert!(live.lose(1..3, &lost));
        let repaired = repair(&mut live, now);
        assert_eq!(replaced(repaired.clone()), (1, vec![]), "rank 2 was on the machine");
        assert!(
            matches!(repaired, Some(Decision::Replace { lost: machines, .. }) if machines == [lost.clone()])
        );
        [0, 3].into_iter().for_each(|rank| live.hear(rank, FromRank::Lost(1), now));
        assert_eq!(replaced(repair(&mut live, now)), (2, vec![]));
        live.observe(News::Outcome(killed(3)), now);
        assert_eq!(replaced(repair(&mut live, now)), (3, vec![3]));
        assert!(!live.lose(3..4, &lost), "no generation is left");
        live.observe(News::Outcome(lost.clone()), now);
        assert_eq!((repair(&mut live, now), live.outcome(now)), (None, Some(lost)));
    }

    #[test]
    fn a_group_that_has_lost_no_rank_meets_again() {
        let (mut live, now) = started(2, 1);
        (0..2).for_each(|rank| live.hear(rank, FromRank::Lost(0), now));
        assert_eq!(replaced(repair(&mut live, now)), (1, vec![]));
    }
}
