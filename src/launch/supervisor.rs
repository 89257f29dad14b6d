//! Runs one round: starts the ranks, watches them, and ends all of them when one fails.

use super::{
    environment::Round,
    failure_detector::{AFTER_FAILURE, AFTER_SIGNAL, Decision, FailureDetector},
    generation::Generation,
    job::Job,
    live_recovery::Repair,
    nodes::Agent,
    outcome::{ExitReason, Outcome},
    port::ReservedPort,
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
    let replacements = round.max_restarts.saturating_sub(round.restarts);
    let mut detector = FailureDetector::new(round.world_size()).with_repairs(round.recover, replacements);
    // The port of a later generation of a job on this machine.
    let mut reserved = None;
    let ending = loop {
        let (messages, news) = (ranks.messages(), monitor.news(&mut ranks, signals, job.poll));
        let decision = match &mut agent {
            Some(agent) => {
                messages.into_iter().for_each(|(rank, message)| agent.forward(rank, message));
                news.into_iter().for_each(|outcome| agent.tell(outcome));
                agent.decision()
            }
            None => {
                let now = Instant::now();
                messages.into_iter().for_each(|(rank, message)| detector.hear(rank, message, now));
                news.into_iter().for_each(|outcome| detector.observe(outcome, now));
                detector.decide(now).map(|decision| (decision, None))
            }
        };
        match decision {
            Some((Decision::End(ending), _)) => break ending,
            Some((Decision::Repair(Repair::Replace { generation, failures }), port)) => {
                let master_port = match port {
                    Some(port) => port,
                    None => reserved.insert(ReservedPort::new()?).number,
                };
                round.generation = Generation { number: generation, master_port };
                ranks.replace(job, round, failures)?;
            }
            Some((Decision::Repair(Repair::Kill { ranks: late, only_stopped }), _)) => {
                ranks.kill(&late, only_stopped);
            }
            None => thread::sleep(job.poll),
        }
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
    /// Whether a stop signal was reported.
    signalled: bool,
    /// A rank that is stopped, by which signal, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, i32, Duration)>,
}

impl RankMonitor {
    /// Outcomes since the last call: a stop signal, then the ranks that have ended or stay stopped.
    fn news(&mut self, ranks: &mut Ranks, signals: &Signals, poll: Duration) -> Vec<Outcome> {
        let signal = signals.first().filter(|_| !self.signalled);
        self.signalled |= signal.is_some();
        let mut news: Vec<Outcome> = signal.map(|signal| Outcome::Stopped { signal }).into_iter().collect();
        news.extend(ranks.ended());
        if news.is_empty() {
            news.extend(self.halted(ranks, poll));
        }
        news
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
        let (sizes, run_id) = (vec![count], job.run_id.clone());
        let generation = Generation { number: 0, master_port: 29500 };
        let recover = job.recover;
        let round = Round { restarts: 0, max_restarts: 0, recover, node: 0, sizes, generation, run_id };
        Ranks::start(&job, &round, &Signals::default())
    }

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let (mut ranks, signals, mut monitor) =
            (sleepers(count)?, Signals::default(), RankMonitor::default());
        let mut look = |ranks: &mut Ranks| monitor.news(ranks, &signals, Duration::from_secs(30)).pop();
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
