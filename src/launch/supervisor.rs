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
    let mut ranks = Ranks::start(job, round, port)?;
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
        if let Some(ending) = watch.look(ranks, signals) {
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
        if !told && let Some(ending) = watch.look(ranks, signals) {
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
    stopped: bool,
}

impl Watch {
    /// How the round has ended here, if it has.
    fn look(&mut self, ranks: &mut Ranks, signals: &Signals) -> Option<Ending> {
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
            None => all.then_some(Ending::Done),
        }
    }
}
