//! Runs a job round after round, until one succeeds, no restarts are left or a stop signal arrives.

use super::{
    environment::Round,
    failure_detector::{AFTER_FAILURE, AFTER_SIGNAL},
    job::Job,
    nodes::{Agent, CoordinatorServer},
    nproc,
    outcome::{Decision, News, Outcome},
    ranks::Ranks,
};
use crate::process::stop::{self, GracefulShutdown};
use anyhow::{Context, Result};
use collective::address;
use std::{
    net::ToSocketAddrs,
    process::ExitCode,
    thread,
    time::{Duration, Instant},
};

/// Time after a failure in which other ranks report errors of their own, such as a mismatch of collectives.
const OWN_ERRORS: Duration = Duration::from_millis(100);

/// Runs a job on this machine, or this machine's part of it, and waits until it ends.
///
/// The exit code is that of [`ranks()`](super::ranks()).
///
/// # Errors
/// If there are no ranks or too many for this machine, a rank cannot be started, or the other machines do
/// not join.
pub fn run(job: &Job) -> Result<ExitCode> {
    nproc::check(job.round.world_size())?;
    let _graceful_shutdown = GracefulShutdown::in_launcher()?;
    if job.rules.max > 1 { on_nodes(job) } else { on_this_machine(job) }
}

/// Reports an outcome. Returns the exit code if the job is over, or `None` if another round follows.
fn conclude(ending: &Outcome, round: &mut Round) -> Option<ExitCode> {
    let (restarts, max_restarts) = (round.failures(), round.max_restarts);
    let how = match ending {
        _ if round.halves_batch(ending) => "with half the batch".into(),
        Outcome::Failed(_) | Outcome::Lost { .. } if restarts < max_restarts => {
            format!("restart {} of {max_restarts}", restarts + 1)
        }
        _ => {
            let spent =
                if max_restarts > 0 { format!(" after {restarts} restart(s)") } else { String::new() };
            return Some(ending.report(&format!("the job was stopped{spent}")));
        }
    };
    round.restart(ending);
    ending.report(&format!("restarting all ranks, {how}"));
    None
}

fn on_this_machine(job: &Job) -> Result<ExitCode> {
    let mut round = job.round.clone();
    loop {
        let mut detector = round.begin(job.master_port)?;
        let ending = run_round(job, &mut round, |news| {
            let now = Instant::now();
            news.into_iter().for_each(|news| detector.observe(news, now));
            detector.decide(now)
        })?;
        if let Some(code) = conclude(&ending, &mut round) {
            return Ok(code);
        }
    }
}

fn on_nodes(job: &Job) -> Result<ExitCode> {
    let address = address::join(&job.master_addr, job.nodes_port());
    let _coordinator = (job.node == 0).then(|| open_coordinator(job, &address)).transpose()?;
    // Declared after the coordinator, so that it disconnects before the coordinator waits for all agents.
    let stopped = || Outcome::Stopped { signal: stop::signal().unwrap_or(libc::SIGTERM) }.report("");
    let Some(mut agent) = Agent::connect(&address, &job.secret, job.rules.join_timeout)? else {
        return Ok(stopped());
    };
    loop {
        let Some(mut round) = agent.join(job.node, job.round.world_size())? else {
            return Ok(stopped());
        };
        let ended = run_round(job, &mut round, |news| {
            news.into_iter().for_each(|news| agent.tell(news));
            Ok(agent.decision())
        });
        let ending = match ended {
            Ok(ending) => ending,
            Err(error) => {
                let reason = format!("cannot start its ranks: {error:#}");
                agent.tell(News::Outcome(Outcome::Lost { node: round.node, reason }));
                return Err(error);
            }
        };
        if let Some(code) = conclude(&ending, &mut round) {
            return Ok(code);
        }
    }
}

fn open_coordinator(job: &Job, address: &str) -> Result<CoordinatorServer> {
    let addresses = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let listener = addresses.and_then(|addresses| address::bind(&addresses)).with_context(|| {
        format!(
            "node 0 cannot listen at {address}; is --master-port taken, and --master-addr this machine's?"
        )
    })?;
    CoordinatorServer::start(listener, job)
}

/// Runs one round on this machine: starts the ranks, watches them, and does what `decide` decides because of their
/// news, until it ends the round.
///
/// `round` counts the generations.
///
/// # Errors
/// Those of `decide`, or if a rank cannot be started.
fn run_round(
    job: &Job,
    round: &mut Round,
    mut decide: impl FnMut(Vec<News>) -> Result<Option<Decision>>,
) -> Result<Outcome> {
    let mut ranks = Ranks::start(job, round)?;
    let ending = loop {
        match decide(ranks.news())? {
            Some(Decision::End(ending)) => break ending,
            Some(Decision::Replace { generation, failures, lost }) => {
                ranks.replace(generation, failures, &lost)?;
            }
            Some(Decision::Kill { ranks: late, only_stopped }) => ranks.kill(&late, only_stopped),
            None => thread::sleep(job.poll),
        }
    };
    match ending {
        Outcome::Done => ranks.finish(),
        Outcome::Stopped { signal } => ranks.stop(signal, AFTER_SIGNAL),
        Outcome::Failed(_) | Outcome::Lost { .. } => {
            ranks.wait(OWN_ERRORS);
            ranks.stop(libc::SIGTERM, AFTER_FAILURE);
        }
    }
    Ok(ending)
}
