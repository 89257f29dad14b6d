//! Runs a job round after round, until one succeeds, no restarts are left or a stop signal arrives.

use super::{
    environment::Round,
    nodes::{Agent, Begin, CoordinatorServer, Rules},
    outcome::Outcome,
    port::{ReservedPort, is_loopback},
    ranks::Job,
    signals::Signals,
    supervisor,
};
use anyhow::{Context, Result};
use collective::{SECRET, Secret, address};
use std::{net::ToSocketAddrs, process::ExitCode};

/// Default port on which the launchers of several machines meet, as in torchrun.
const NODES_PORT: u16 = 29_500;

/// Number of ranks and machines, address and restarts of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaunchConfig {
    /// Ranks on this machine.
    pub ranks: usize,
    pub rules: Rules,
    pub node: usize,
    pub master_addr: String,
    pub master_port: Option<u16>,
    pub max_restarts: usize,
    pub run_id: String,
}

/// Runs the job, reports its outcome and returns the exit code.
///
/// # Errors
/// If a rank cannot be started, or the other machines do not join.
pub fn run(job: &Job, config: &LaunchConfig, signals: &Signals) -> Result<ExitCode> {
    if config.rules.max > 1 { on_nodes(job, config, signals) } else { on_this_machine(job, config, signals) }
}

/// Reports an outcome. Returns the exit code if the job is over, or `None` if another round follows.
fn conclude(ending: &Outcome, restarts: usize, max_restarts: usize) -> Option<ExitCode> {
    let over = match ending {
        Outcome::Done | Outcome::Stopped { .. } => true,
        Outcome::Failed(_) | Outcome::Lost { .. } => restarts >= max_restarts,
    };
    if over {
        let spent = if max_restarts > 0 { format!(" after {restarts} restart(s)") } else { String::new() };
        return Some(ending.report(&format!("the job was stopped{spent}")));
    }
    ending.report(&format!("restarting all ranks, restart {} of {max_restarts}", restarts + 1));
    None
}

fn on_this_machine(job: &Job, config: &LaunchConfig, signals: &Signals) -> Result<ExitCode> {
    // Without a secret from the user, each round has an unpredictable one.
    let secret = match std::env::var(SECRET) {
        Ok(text) => Secret::new(text)?,
        Err(_) => Secret::random(),
    };
    for restarts in 0.. {
        let reserved = if config.master_port.is_none() { Some(ReservedPort::new()?) } else { None };
        let port = reserved.as_ref().map(|port| port.number).or(config.master_port).unwrap_or(0);
        let mut round = Round::alone(config.ranks, port, round_secret(&secret, restarts));
        round.master_addr = config.master_addr.clone();
        (round.restarts, round.max_restarts) = (restarts, config.max_restarts);
        round.run_id = config.run_id.clone();
        let ending = supervisor::run(job, &round, None, signals)?;
        if let Some(code) = conclude(&ending, restarts, config.max_restarts) {
            return Ok(code);
        }
    }
    Ok(ExitCode::FAILURE)
}

fn on_nodes(job: &Job, config: &LaunchConfig, signals: &Signals) -> Result<ExitCode> {
    let port = config.master_port.unwrap_or(NODES_PORT);
    let secret = shared_secret(&config.master_addr, port)?;
    let address = address::join(&config.master_addr, port);
    let _coordinator = (config.node == 0).then(|| open_coordinator(config, &address, &secret)).transpose()?;
    // Declared after the coordinator, so that it disconnects before the coordinator waits for all agents.
    let stopped = || Outcome::Stopped { signal: signals.first().unwrap_or(libc::SIGTERM) }.report("");
    let Some(mut agent) = Agent::connect(&address, &secret, config.rules.join_timeout, signals)? else {
        return Ok(stopped());
    };
    loop {
        let Some(begin) = agent.join(config.node, config.ranks, signals)? else { return Ok(stopped()) };
        let Begin { restarts, max_restarts, node, sizes, master_port, run_id } = begin;
        let secret = round_secret(&secret, restarts);
        let master_addr = config.master_addr.clone();
        let round = Round { restarts, max_restarts, node, sizes, master_addr, master_port, secret, run_id };
        let ending = match supervisor::run(job, &round, Some(&mut agent), signals) {
            Ok(ending) => ending,
            Err(error) => {
                agent.tell(Outcome::Lost { node, reason: format!("cannot start its ranks: {error:#}") });
                return Err(error);
            }
        };
        if let Some(code) = conclude(&ending, restarts, max_restarts) {
            return Ok(code);
        }
    }
}

/// The secret of one round.
fn round_secret(job: &Secret, restarts: usize) -> Secret {
    job.derive(&format!("round {restarts}"))
}

/// The secret that the launchers and ranks of several machines share.
fn shared_secret(master_addr: &str, port: u16) -> Result<Secret> {
    match std::env::var(SECRET) {
        Ok(text) => Ok(Secret::new(text)?),
        // For trials on one machine only: it distinguishes jobs and does not keep other users out.
        Err(_) if is_loopback(master_addr)? => Ok(Secret::new(format!("burn-ddp launch {port}"))?),
        Err(_) => anyhow::bail!(
            "several nodes use {master_addr}, which other machines can reach, without a secret: set {SECRET} to the same long random text on all nodes (`openssl rand -hex 32` makes one)"
        ),
    }
}

fn open_coordinator(config: &LaunchConfig, address: &str, secret: &Secret) -> Result<CoordinatorServer> {
    let addresses = address.to_socket_addrs().map(Iterator::collect::<Vec<_>>);
    let listener = addresses.and_then(|addresses| address::bind(&addresses)).with_context(|| {
        format!(
            "node 0 cannot listen at {address}; is --master-port taken, and --master-addr this machine's?"
        )
    })?;
    CoordinatorServer::start(
        listener,
        secret.clone(),
        config.rules,
        config.run_id.clone(),
        config.max_restarts,
    )
}
