//! One round from start to end: whoever fails first ends it everywhere.

use super::{
    ending::{Ending, How},
    environment::Round,
    nodes::Agent,
    port::MasterPort,
    ranks::{Job, Ranks, asked_by, is_consequence},
    signals::Signals,
};
use anyhow::Result;
use std::{
    io::{IsTerminal, stdin},
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
        Ending::Stopped { signal } => {
            // Ctrl-C reaches the terminal's whole foreground group; SIGTERM comes to us alone.
            let from_terminal = signal == libc::SIGINT && stdin().is_terminal();
            ranks.stop(signal, AFTER_SIGNAL, from_terminal, signals);
        }
        Ending::Failed(_) | Ending::Lost { .. } => ranks.stop(libc::SIGTERM, AFTER_FAILURE, false, signals),
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
    stopped: bool,
}

impl Watch {
    /// How the round has ended here, if it has.
    fn look(&mut self, ranks: &mut Ranks, signals: &Signals) -> Option<Ending> {
        if let Some(signal) = signals.first() {
            self.stopped = true;
            return Some(Ending::Stopped { signal });
        }
        for (rank, status) in ranks.ended() {
            let Some(how) = How::of(status) else { continue };
            if !is_consequence(how) {
                return Some(Ending::Failed(ranks.failure(rank, how)));
            }
            self.consequence.get_or_insert((rank, how, Instant::now() + AFTER_FAILURE));
        }
        let all = ranks.all_ended();
        match self.consequence {
            Some((rank, how, until)) if all || Instant::now() > until => {
                // One rank was told to stop, and told the others.
                let stopped = asked_by(how).map(|signal| Ending::Stopped { signal });
                Some(stopped.unwrap_or_else(|| Ending::Failed(ranks.failure(rank, how))))
            }
            Some(_) => None,
            None => all.then_some(Ending::Done),
        }
    }
}
