//! Runs a job round after round, until one succeeds, no restarts are left or a stop signal arrives.

use super::{
    decision::News,
    environment::Round,
    generation::Generation,
    job::Job,
    nodes::{Agent, CoordinatorServer},
    outcome::Outcome,
    port::ReservedPort,
    signals::Signals,
    supervisor,
};
use anyhow::{Context, Result};
use collective::address;
use std::{net::ToSocketAddrs, process::ExitCode};

/// Runs the job, reports its outcome and returns the exit code.
///
/// # Errors
/// If a rank cannot be started, or the other machines do not join.
pub fn run(job: &Job, signals: &Signals) -> Result<ExitCode> {
    if job.rules.max > 1 { on_nodes(job, signals) } else { on_this_machine(job, signals) }
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

fn on_this_machine(job: &Job, signals: &Signals) -> Result<ExitCode> {
    let mut round = job.round();
    loop {
        let reserved = if job.master_port.is_none() { Some(ReservedPort::new()?) } else { None };
        let master_port = reserved.as_ref().map(|port| port.number).or(job.master_port).unwrap_or(0);
        round.generation = Generation { number: 0, master_port };
        let ending = supervisor::run(job, &mut round, None, signals)?;
        if let Some(code) = conclude(&ending, &mut round) {
            return Ok(code);
        }
    }
}

fn on_nodes(job: &Job, signals: &Signals) -> Result<ExitCode> {
    let address = address::join(&job.master_addr, job.nodes_port());
    let _coordinator = (job.node == 0).then(|| open_coordinator(job, &address)).transpose()?;
    // Declared after the coordinator, so that it disconnects before the coordinator waits for all agents.
    let stopped = || Outcome::Stopped { signal: signals.first().unwrap_or(libc::SIGTERM) }.report("");
    let Some(mut agent) = Agent::connect(&address, &job.secret, job.rules.join_timeout, signals)? else {
        return Ok(stopped());
    };
    loop {
        let Some(mut round) = agent.join(job.node, job.ranks, signals)? else { return Ok(stopped()) };
        let ending = match supervisor::run(job, &mut round, Some(&mut agent), signals) {
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
