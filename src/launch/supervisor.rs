//! Runs one round: starts the ranks, watches them, and ends all of them when one fails.

use super::{
    decision::{Decision, News},
    environment::Round,
    failure_detector::{AFTER_FAILURE, AFTER_SIGNAL},
    job::Job,
    nodes::Agent,
    outcome::{ExitReason, Outcome},
    ranks::Ranks,
    signals::Signals,
};
use anyhow::Result;
use std::{
    thread,
    time::{Duration, Instant},
};

/// How long a rank may stay stopped (SIGSTOP) while others need it.
const STOPPED: Duration = Duration::from_secs(75);

/// Time after a failure in which other ranks report errors of their own, such as a mismatch of collectives.
const OWN_ERRORS: Duration = Duration::from_millis(100);

/// Runs one round on this machine, together with the other machines if there is an `agent`.
///
/// `round` counts the generations.
///
/// # Errors
/// If a rank cannot be started.
pub fn run(
    job: &Job,
    round: &mut Round,
    mut agent: Option<&mut Agent>,
    signals: &Signals,
) -> Result<Outcome> {
    let mut ranks = Ranks::start(job, round, signals)?;
    let mut monitor = RankMonitor::default();
    let mut detector = round.detector();
    // Holds the port of a later generation of a job on this machine.
    let mut _reserved = None;
    let ending = loop {
        let news = ranks.messages().into_iter().map(|(rank, message)| News::Message(rank, message));
        let outcomes = monitor.outcomes(&mut ranks, signals, job.poll);
        let news = news.chain(outcomes.into_iter().map(News::Outcome));
        let decision = match &mut agent {
            Some(agent) => {
                news.for_each(|news| agent.tell(news));
                agent.decision()
            }
            None => {
                let now = Instant::now();
                news.for_each(|news| detector.observe(news, now));
                let mut decision = detector.decide(now);
                if let Some(port) = decision.as_mut().map_or(Ok(None), Decision::reserve_port)? {
                    _reserved = Some(port);
                }
                decision
            }
        };
        match decision {
            Some(Decision::End(ending)) => break ending,
            Some(Decision::Replace { generation, failures }) => {
                round.generation = generation;
                ranks.replace(job, round, failures)?;
            }
            Some(Decision::Kill { ranks: late, only_stopped }) => ranks.kill(&late, only_stopped),
            None => thread::sleep(job.poll),
        }
    };
    match ending {
        Outcome::Done => ranks.finish(),
        Outcome::Stopped { signal } => ranks.stop(signal, AFTER_SIGNAL, signals),
        Outcome::Failed(_) | Outcome::Lost { .. } => {
            ranks.wait(OWN_ERRORS, signals);
            ranks.stop(libc::SIGTERM, AFTER_FAILURE, signals);
        }
    }
    Ok(ending)
}

/// Observations of this machine's ranks.
#[derive(Default)]
struct RankMonitor {
    /// Whether a stop signal was reported.
    signalled: bool,
    /// A rank that is stopped, by which signal, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, i32, Duration)>,
}

impl RankMonitor {
    /// Outcomes since the last call: a stop signal, then the ranks that have ended or stay stopped.
    fn outcomes(&mut self, ranks: &mut Ranks, signals: &Signals, poll: Duration) -> Vec<Outcome> {
        let signal = signals.first().filter(|_| !self.signalled);
        self.signalled |= signal.is_some();
        let mut outcomes: Vec<_> = signal.map(|signal| Outcome::Stopped { signal }).into_iter().collect();
        outcomes.extend(ranks.ended());
        if outcomes.is_empty() {
            outcomes.extend(self.halted(ranks, poll));
        }
        outcomes
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
        Some(ranks.failure(rank, ExitReason::Stopped(signal)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleepers(count: usize) -> Result<Ranks> {
        let mut job = Job::new("sleep", vec!["60".into()], count);
        job.output.prefixed = true;
        Ranks::start(&job, &job.round(), &Signals::default())
    }

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let (mut ranks, signals, mut monitor) =
            (sleepers(count)?, Signals::default(), RankMonitor::default());
        let mut look = |ranks: &mut Ranks| monitor.outcomes(ranks, &signals, Duration::from_secs(30)).pop();
        assert_eq!((look(&mut ranks), look(&mut ranks)), (None, None));
        ranks.signal_first(libc::SIGSTOP);
        while ranks.stopped().next().is_none() {
            thread::sleep(Duration::from_millis(10));
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
