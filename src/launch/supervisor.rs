//! Runs one round: starts the ranks, watches them, and ends all of them when one fails.

use super::{
    environment::Round,
    nodes::Agent,
    outcome::{ExitReason, Outcome},
    port::MasterPort,
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
pub fn run(
    job: &Job,
    round: &Round,
    port: &MasterPort,
    agent: Option<&mut Agent>,
    signals: &Signals,
) -> Result<Outcome> {
    let mut ranks = Ranks::start(job, round, port, signals)?;
    let ending = match agent {
        None => alone(job, &mut ranks, signals),
        Some(agent) => together(job, &mut ranks, agent, signals),
    };
    match ending {
        Outcome::Done => ranks.finish(),
        Outcome::Stopped { signal } => ranks.stop(signal, AFTER_SIGNAL, signals),
        Outcome::Failed(_) | Outcome::Lost { .. } => ranks.stop(libc::SIGTERM, AFTER_FAILURE, signals),
    }
    Ok(ending)
}

fn alone(job: &Job, ranks: &mut Ranks, signals: &Signals) -> Outcome {
    let mut watch = Watch::default();
    loop {
        if let Some(ending) = watch.look(ranks, signals, job.poll) {
            return ending;
        }
        thread::sleep(job.poll);
    }
}

/// Reports what happens here to the coordinator, which decides how the round ends on all machines.
fn together(job: &Job, ranks: &mut Ranks, agent: &mut Agent, signals: &Signals) -> Outcome {
    let mut watch = Watch::default();
    let mut told = false;
    loop {
        if !told && let Some(ending) = watch.look(ranks, signals, job.poll) {
            agent.tell(ending);
            told = true;
        }
        if let Some(outcome) = agent.outcome() {
            return outcome;
        }
        // A signal counts also after this machine's ranks have ended, while others run.
        if let Some(signal) = signals.first().filter(|_| !watch.stopped) {
            watch.stopped = true;
            agent.tell(Outcome::Stopped { signal });
        }
        thread::sleep(job.poll);
    }
}

/// Observations of this machine's ranks.
#[derive(Default)]
struct Watch {
    /// A rank that failed because of another rank, and how long to wait for that other rank's failure.
    consequence: Option<(usize, ExitReason, Instant)>,
    /// A rank that exited because of this stop signal, and how long to wait for the others to finish the same
    /// step.
    asked: Option<(usize, ExitReason, i32, Instant)>,
    /// Whether the launcher has received a stop signal.
    stopped: bool,
    /// A rank that is stopped, by which signal, and for how long it was observed so.
    ///
    /// Observed time, and not elapsed time: a scheduler that suspends the job stops the launcher, too.
    halted: Option<(usize, i32, Duration)>,
}

impl Watch {
    /// How the round has ended on this machine, if it has.
    fn look(&mut self, ranks: &mut Ranks, signals: &Signals, poll: Duration) -> Option<Outcome> {
        if let Some(signal) = signals.first() {
            self.stopped = true;
            return Some(Outcome::Stopped { signal });
        }
        let now = Instant::now();
        for (rank, status) in ranks.ended() {
            match ExitReason::of(status) {
                None => {}
                Some(how @ ExitReason::Exited(code)) if code == i32::from(OTHER_RANK_FAILED) => {
                    self.consequence.get_or_insert((rank, how, now + AFTER_FAILURE));
                }
                Some(how) => match how.asked_by() {
                    Some(signal) => {
                        self.asked.get_or_insert((rank, how, signal, now + AFTER_SIGNAL));
                    }
                    None => return Some(Outcome::Failed(ranks.failure(rank, how))),
                },
            }
        }
        let all = ranks.all_ended();
        if let Some((rank, how, until)) = self.consequence {
            return (all || now > until).then(|| Outcome::Failed(ranks.failure(rank, how)));
        }
        match self.asked {
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
        let port = MasterPort::reserved()?;
        let round = Round::alone(count, port.number(), Secret::random());
        Ranks::start(&job, &round, &port, &Signals::new())
    }

    /// The outcome after several checks of ranks, the first of which is stopped before the third check.
    fn watched(count: usize) -> Result<Option<Outcome>> {
        let (mut ranks, signals, mut watch) = (sleepers(count)?, Signals::new(), Watch::default());
        let mut look = |ranks: &mut Ranks| watch.look(ranks, &signals, Duration::from_secs(30));
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
