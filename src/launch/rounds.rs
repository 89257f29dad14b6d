//! A job of `burn-ddp launch` from start to end: round after round until one ends well, restarts
//! run out or somebody asks to stop.

use super::{
    ending::Ending,
    environment::Round,
    nodes::{Agent, Begin, Hub, Rules},
    port::{MasterPort, is_loopback},
    ranks::Job,
    signals::Signals,
    supervisor,
};
use anyhow::{Context, Result};
use collective::{SECRET, Secret};
use std::{net::TcpListener, process::ExitCode};

/// What the user decided about the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Ranks on this machine.
    pub ranks: usize,
    pub rules: Rules,
    pub node: usize,
    pub master_addr: String,
    pub master_port: Option<u16>,
    pub max_restarts: usize,
    pub run_id: String,
}

/// Runs the job and reports its end.
///
/// # Errors
/// If a rank cannot be started, or the machines do not come together.
pub fn run(job: &Job, plan: &Plan, signals: &Signals) -> Result<ExitCode> {
    if plan.rules.max > 1 { on_nodes(job, plan, signals) } else { on_this_machine(job, plan, signals) }
}

/// What comes of an ending: the exit code if the job is over, or nothing if there is another round.
fn settle(ending: &Ending, restarts: usize, max_restarts: usize) -> Option<ExitCode> {
    let over = match ending {
        Ending::Done | Ending::Stopped { .. } => true,
        Ending::Failed(_) | Ending::Lost { .. } => restarts >= max_restarts,
    };
    if over {
        let spent = if max_restarts > 0 { format!(" after {restarts} restart(s)") } else { String::new() };
        return Some(ending.report(&format!("the job was stopped{spent}")));
    }
    ending.report(&format!("all ranks start again, restart {} of {max_restarts}", restarts + 1));
    None
}

fn on_this_machine(job: &Job, plan: &Plan, signals: &Signals) -> Result<ExitCode> {
    // Without the user's, each round has one that nobody could have known before.
    let secret = match std::env::var(SECRET) {
        Ok(text) => Secret::new(text)?,
        Err(_) => Secret::random(),
    };
    for restarts in 0.. {
        let port = match plan.master_port {
            Some(port) => MasterPort::Given(port),
            None => MasterPort::reserved()?,
        };
        let mut round = Round::alone(plan.ranks, port.number(), of_round(&secret, restarts));
        round.master_addr = plan.master_addr.clone();
        (round.restarts, round.max_restarts) = (restarts, plan.max_restarts);
        round.run_id = plan.run_id.clone();
        let ending = supervisor::run(job, &round, &port, None, signals)?;
        if let Some(code) = settle(&ending, restarts, plan.max_restarts) {
            return Ok(code);
        }
    }
    Ok(ExitCode::FAILURE)
}

fn on_nodes(job: &Job, plan: &Plan, signals: &Signals) -> Result<ExitCode> {
    let port = plan.master_port.unwrap_or(super::command::NODES_PORT);
    let secret = shared_secret(&plan.master_addr, port)?;
    let address = if plan.master_addr.contains(':') {
        format!("[{}]:{port}", plan.master_addr)
    } else {
        format!("{}:{port}", plan.master_addr)
    };
    let _hub = (plan.node == 0).then(|| open_hub(plan, &address, port, &secret)).transpose()?;
    // Declared after the hub, so that it leaves before the hub waits for all to have left.
    let stopped = || Ending::Stopped { signal: signals.first().unwrap_or(libc::SIGTERM) }.report("");
    let Some(mut agent) = Agent::connect(&address, &secret, plan.rules.join_timeout, signals)? else {
        return Ok(stopped());
    };
    loop {
        let Some(begin) = agent.join(plan.node, plan.ranks, signals)? else { return Ok(stopped()) };
        let Begin { restarts, max_restarts, node, sizes, master_port, run_id } = begin;
        let secret = of_round(&secret, restarts);
        let master_addr = plan.master_addr.clone();
        let round = Round { restarts, max_restarts, node, sizes, master_addr, master_port, secret, run_id };
        let port = MasterPort::Given(master_port);
        let ending = match supervisor::run(job, &round, &port, Some(&mut agent), signals) {
            Ok(ending) => ending,
            Err(error) => {
                agent.tell(Ending::Lost { node, reason: format!("cannot start its ranks: {error:#}") });
                return Err(error);
            }
        };
        if let Some(code) = settle(&ending, restarts, max_restarts) {
            return Ok(code);
        }
    }
}

/// The round's own secret.
fn of_round(job: &Secret, restarts: usize) -> Secret {
    job.derive(&format!("round {restarts}"))
}

/// What the launchers and ranks of several machines prove to each other.
fn shared_secret(master_addr: &str, port: u16) -> Result<Secret> {
    match std::env::var(SECRET) {
        Ok(text) => Ok(Secret::new(text)?),
        // Only for trying it out on one machine: it keeps apart jobs, not people.
        Err(_) if is_loopback(master_addr)? => Ok(Secret::new(format!("burn-ddp launch {port}"))?),
        Err(_) => anyhow::bail!(
            "several nodes meet at {master_addr}, which others can reach, and there is no secret: set {SECRET} to the same long random text on all nodes (`openssl rand -hex 32` makes one)"
        ),
    }
}

fn open_hub(plan: &Plan, address: &str, port: u16, secret: &Secret) -> Result<Hub> {
    let listener = TcpListener::bind(address)
        // A service name or a translated address stands for this machine without being its own.
        .or_else(|error| match error.kind() {
            std::io::ErrorKind::AddrNotAvailable => TcpListener::bind(("0.0.0.0", port)),
            _ => Err(error),
        })
        .with_context(|| {
            format!(
                "node 0 cannot listen at {address}; is --master-port taken, and --master-addr this machine's?"
            )
        })?;
    Hub::start(listener, secret.clone(), plan.rules, plan.run_id.clone(), plan.max_restarts)
}
