//! One round from start to end: whoever fails first ends it everywhere.

use super::{
    ending::{Ending, How},
    environment::Round,
    nodes::Agent,
    port::MasterPort,
    ranks::{Job, Ranks},
    signals::Signals,
};
use crate::exit::OTHER_RANK_FAILED;
use anyhow::Result;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Between two looks at the ranks.
pub const POLL: Duration = Duration::from_millis(10);
/// Time the other ranks have to leave after one failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);
/// Time all ranks have to finish their step and write a checkpoint when the job is told to stop.
const AFTER_SIGNAL: Duration = Duration::from_secs(30);

/// How long a rank may stay stopped (SIGSTOP) while others need it.
const STOPPED: Duration = Duration::from_secs(75);

/// Runs one round on this machine, in step with the other machines if there is an `agent`.
///
/// # Errors
/// If a rank cannot be started.
pub fn run(
    job: &Job,
    round: &Round,
    port: &MasterPort,
    agent: Option<&mut Agent>,
    signals: &Signals,
) -> Result<Ending> {
    let mut ranks = Ranks::start(job, round, port, signals)?;
    let ending = match agent {
        None => alone(job, &mut ranks, signals),
        Some(agent) => together(job, &mut ranks, agent, signals),
    };
    match ending {
        Ending::Done => ranks.finish(),
        Ending::Stopped { signal } => ranks.stop(signal, AFTER_SIGNAL, signals),
        Ending::Failed(_) | Ending::Lost { .. } => ranks.stop(libc::SIGTERM, AFTER_FAILURE, signals),
    }
    Ok(ending)
}

fn alone(job: &Job, ranks: &mut Ranks, signals: &Signals) -> Ending {
    let mut watch = Watch::default();
    loop {
        if let Some(ending) = watch.look(ranks, signals, job.poll) {
            return ending;
        }
        thread::sleep(job.poll);
    }
}

/// The hub hears what happens here and decides, for all machines, how the round ends.
fn together(job: &Job, ranks: &mut Ranks, agent: &mut Agent, signals: &Signals) -> Ending {
    let mut watch = Watch::default();
    let mut told = false;
    loop {
        if !told && let Some(ending) = watch.look(ranks, signals, job.poll) {
            agent.tell(ending);
            told = true;
        }
        if let Some(verdict) = agent.verdict() {
            return verdict;
        }
        // Also after this machine's ranks are done, while others are not.
        if let Some(signal) = signals.first().filter(|_| !watch.stopped) {
            watch.stopped = true;
            agent.tell(Ending::Stopped { signal });
        }
        thread::sleep(job.poll);
    }
}

/// What has been seen of this machine's ranks.
#[derive(Default)]
struct Watch {
    /// A rank that only suffers from another's failure, and how long to wait for that other one.
    consequence: Option<(usize, How, Instant)>,
    /// A rank that was asked to stop and did, by which signal, and how long to wait for the others to
    /// finish the same step.
    asked: Option<(usize, How, i32, Instant)>,
    /// The launcher was told to stop.
    stopped: bool,
    /// A rank that stands stopped, by which signal, and for how long it was seen so. If the launcher is
    /// stopped with it, as by a scheduler that suspends the job, nobody looks and no time passes.
    halted: Option<(usize, i32, Duration)>,
}

impl Watch {
    /// How the round has ended here, if it has.
    fn look(&mut self, ranks: &mut Ranks, signals: &Signals, poll: Duration) -> Option<Ending> {
        if let Some(signal) = signals.first() {
            self.stopped = true;
            return Some(Ending::Stopped { signal });
        }
        let now = Instant::now();
        for (rank, status) in ranks.ended() {
            match How::of(status) {
                None => {}
                Some(how @ How::Exited(code)) if code == i32::from(OTHER_RANK_FAILED) => {
                    self.consequence.get_or_insert((rank, how, now + AFTER_FAILURE));
                }
                Some(how) => match how.asked_by() {
                    Some(signal) => {
                        self.asked.get_or_insert((rank, how, signal, now + AFTER_SIGNAL));
                    }
                    None => return Some(Ending::Failed(ranks.failure(rank, how))),
                },
            }
        }
        let all = ranks.all_ended();
        if let Some((rank, how, until)) = self.consequence {
            return (all || now > until).then(|| Ending::Failed(ranks.failure(rank, how)));
        }
        match self.asked {
            Some((_, _, signal, _)) if all => Some(Ending::Stopped { signal }),
            // The others have not been asked: it did not stop together with them.
            Some((rank, how, _, until)) if now > until => Some(Ending::Failed(ranks.failure(rank, how))),
            Some(_) => None,
            None if all => Some(Ending::Done),
            None => self.halted(ranks, poll),
        }
    }

    /// The failure of a rank that has stood stopped for too long. Those that wait for it in a collective
    /// call notice it themselves, but not those that have ended.
    fn halted(&mut self, ranks: &mut Ranks, poll: Duration) -> Option<Ending> {
        // Alone, it may rest for as long as somebody wishes.
        let stopped = ranks.stopped().next().filter(|_| ranks.world_size() > 1);
        self.halted = stopped.map(|(rank, signal)| match self.halted {
            Some((before, _, seen)) if before == rank => (rank, signal, seen + poll),
            Some(_) | None => (rank, signal, Duration::ZERO),
        });
        let (rank, signal, _) = self.halted.filter(|(_, _, seen)| *seen > STOPPED)?;
        Some(Ending::Failed(ranks.failure(rank, How::Stopped(signal))))
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
        };
        let port = MasterPort::reserved()?;
        let round = Round::alone(count, port.number(), Secret::random());
        Ranks::start(&job, &round, &port, &Signals::new())
    }

    /// What many looks at ranks say, of which the first stands stopped from the third look on.
    fn watched(count: usize) -> Result<Option<Ending>> {
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
        let Ending::Failed(failure) = ending else { panic!("{ending:?}") };
        assert_eq!((failure.rank, failure.how), (0, How::Stopped(libc::SIGSTOP)));
        Ok(())
    }

    #[test]
    fn alone_it_may_rest() -> Result<()> {
        assert_eq!(watched(1)?, None);
        Ok(())
    }
}
