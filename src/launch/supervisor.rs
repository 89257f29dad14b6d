//! Runs one round: starts the ranks, watches them, and ends all of them when one fails.

use super::{
    environment::Round,
    nodes::Agent,
    outcome::{ExitReason, Outcome},
    ranks::{Job, Ranks},
    signals::Signals,
};
use crate::process::exit::OTHER_RANK_FAILED;
use anyhow::Result;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Default polling interval.
pub const POLL: Duration = Duration::from_millis(10);
/// Time that the other ranks have to exit after one has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time that all ranks have to finish their step and write a checkpoint after a stop signal.
const AFTER_SIGNAL: Duration = Duration::from_secs(30);

/// How long a rank may stay stopped (SIGSTOP) while others need it.
const STOPPED: Duration = Duration::from_secs(75);

/// Runs one round on this machine, together with the other machines if there is an `agent`.
///
/// # Errors
/// If a rank cannot be started.
pub fn run(job: &Job, round: &Round, agent: Option<&mut Agent>, signals: &Signals) -> Result<Outcome> {
    let mut ranks = Ranks::start(job, round, signals)?;
    let (mut monitor, mut agent) = (RankMonitor::default(), agent);
    let ending = loop {
        let ending = monitor.check(&mut ranks, signals, job.poll);
        if let Some(ending) = monitor.decide(ending, agent.as_deref_mut()) {
            break ending;
        }
        thread::sleep(job.poll);
    };
    match ending {
        Outcome::Done => ranks.finish(),
        Outcome::Stopped { signal } => ranks.stop(signal, AFTER_SIGNAL, signals),
        Outcome::Failed(_) | Outcome::Lost { .. } => ranks.stop(libc::SIGTERM, AFTER_FAILURE, signals),
    }
    Ok(ending)
}

/// Observations of this machine's ranks.
#[derive(Default)]
struct RankMonitor {
    /// The outcome on this machine that the coordinator was told.
    told: Option<Outcome>,
    /// A rank that failed because of another rank, and how long to wait for that other rank's failure.
    consequence: Option<(usize, ExitReason, Instant)>,
    /// A rank that exited because of this stop signal, and how long to wait for the others to finish the same
    /// step.
    stopped: Option<(usize, ExitReason, i32, Instant)>,
    /// A rank that is stopped, by which signal, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, i32, Duration)>,
}

impl RankMonitor {
    /// The outcome of the round. With an `agent`, the coordinator decides it for all machines.
    fn decide(&mut self, here: Option<Outcome>, agent: Option<&mut Agent>) -> Option<Outcome> {
        let Some(agent) = agent else { return here };
        // A signal counts also after this machine's ranks have ended, while others run.
        let stopped = |outcome: &Outcome| matches!(outcome, Outcome::Stopped { .. });
        let news = |here: &Outcome| self.told.as_ref().is_none_or(|told| stopped(here) && !stopped(told));
        if let Some(here) = here.filter(news) {
            agent.tell(here.clone());
            self.told = Some(here);
        }
        agent.outcome()
    }

    /// How the round has ended on this machine, if it has.
    fn check(&mut self, ranks: &mut Ranks, signals: &Signals, poll: Duration) -> Option<Outcome> {
        if let Some(signal) = signals.first() {
            return Some(Outcome::Stopped { signal });
        }
        if self.told.is_some() {
            return None;
        }
        let now = Instant::now();
        for (rank, status) in ranks.ended() {
            match ExitReason::from_status(status) {
                None => {}
                Some(how @ ExitReason::Exited(code)) if code == i32::from(OTHER_RANK_FAILED) => {
                    self.consequence.get_or_insert((rank, how, now + AFTER_FAILURE));
                }
                Some(how) => match how.stop_signal() {
                    Some(signal) => {
                        self.stopped.get_or_insert((rank, how, signal, now + AFTER_SIGNAL));
                    }
                    None => return Some(Outcome::Failed(ranks.failure(rank, how))),
                },
            }
        }
        let all = ranks.all_ended();
        if let Some((rank, how, until)) = self.consequence {
            return (all || now > until).then(|| Outcome::Failed(ranks.failure(rank, how)));
        }
        match self.stopped {
            Some((_, _, signal, _)) if all => Some(Outcome::Stopped { signal }),
            // The others were not asked to stop: this rank did not exit together with them.
            Some((rank, how, _, until)) if now > until => Some(Outcome::Failed(ranks.failure(rank, how))),
            Some(_) => None,
            None if all => Some(Outcome::Done),
            None => self.halted(ranks, poll),
        }
    }

    /// The failure of a rank that has been stopped for too long.
    ///
    /// Ranks that wait for it in a collective time out by themselves, but ranks that have ended do not.
    fn halted(&mut self, ranks: &mut Ranks, poll: Duration) -> Option<Outcome> {
        // A single rank may be stopped for any time.
        let stopped = ranks.stopped().next().filter(|_| ranks.world_size() > 1);
        self.halted = stopped.map(|(rank, signal)| match self.halted {
            Some((before, _, seen)) if before == rank => (rank, signal, seen + poll),
            Some(_) | None => (rank, signal, Duration::ZERO),
        });
        let (rank, signal, _) = self.halted.filter(|(_, _, seen)| *seen > STOPPED)?;
        Some(Outcome::Failed(ranks.failure(rank, ExitReason::Stopped(signal))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::output::Output;
    use collective::Secret;

    fn sleepers(count: usize) -> Result<Ranks> {
        let job = Job {
            program: "sleep".into(),
            args: vec!["60".into()],
            output: Output::Prefixed,
            poll: POLL,
            why: String::new(),
            variables: Vec::new(),
        };
        let round = Round::alone(count, 29500, Secret::random());
        Ranks::start(&job, &round, &Signals::default())
    }

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let (mut ranks, signals, mut monitor) =
            (sleepers(count)?, Signals::default(), RankMonitor::default());
        let mut look = |ranks: &mut Ranks| monitor.check(ranks, &signals, Duration::from_secs(30));
        assert_eq!((look(&mut ranks), look(&mut ranks)), (None, None));
        ranks.signal_first(libc::SIGSTOP);
        while ranks.stopped().next().is_none() {
            thread::sleep(POLL);
        }
        assert_eq!((look(&mut ranks), look(&mut ranks), look(&mut ranks)), (None, None, None));
        Ok(look(&mut ranks))
    }

    #[test]
    fn a_stopped_rank_that_others_need_ends_the_job_by_name() -> Result<()> {
        let ending = watched(2)?.expect("an ending");
        assert_eq!(ending.code(), 128 + libc::SIGSTOP as u8);
        let Outcome::Failed(failure) = ending else { panic!("{ending:?}") };
        assert_eq!((failure.rank, failure.how), (0, ExitReason::Stopped(libc::SIGSTOP)));
        Ok(())
    }

    #[test]
    fn alone_it_may_rest() -> Result<()> {
        assert_eq!(watched(1)?, None);
        Ok(())
    }
}
