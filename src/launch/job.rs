//! A program to start as ranks, on this machine or several.

use super::{environment::Round, nodes::Rules, output::Output, port::is_loopback};
use anyhow::{Result, bail};
use collective::{SECRET, Secret};
use std::{ffi::OsString, fmt::Display, time::Duration};

/// Default port on which the launchers of several machines meet, as in torchrun.
const NODES_PORT: u16 = 29_500;

/// Name and value of an environment variable.
pub type Variable = (&'static str, OsString);

/// The program to start as every rank, and the number of ranks, machines and restarts.
#[derive(Clone, Debug)]
pub struct Job {
    pub program: OsString,
    pub args: Vec<OsString>,
    pub output: Output,
    /// Polling interval.
    pub poll: Duration,
    /// Environment variables of the ranks, besides the launcher's; such as [`WHY`](super::WHY).
    pub variables: Vec<Variable>,
    /// Number of machines.
    pub rules: Rules,
    /// Index of this machine.
    pub node: usize,
    pub master_addr: String,
    /// Where rank 0 listens, or the launcher of machine 0 if there are several machines.
    pub master_port: Option<u16>,
    /// The first round, with the ranks of this machine only.
    pub round: Round,
    pub secret: Secret,
}

/// Id of a new job: `name` and a random suffix.
pub fn run_id(name: impl Display) -> String {
    let random: String = Secret::random().expose().chars().take(6).collect();
    format!("{name}-{random}")
}

impl Job {
    /// A job on this machine without restarts, whose ranks write to the launcher's output.
    pub fn new(program: impl Into<OsString>, args: Vec<OsString>, ranks: usize) -> Self {
        Job {
            program: program.into(),
            args,
            output: Output::default(),
            poll: Duration::from_millis(10),
            variables: Vec::new(),
            rules: Rules { min: 1, max: 1, join_timeout: Duration::ZERO, last_call: Duration::ZERO },
            node: 0,
            master_addr: "127.0.0.1".into(),
            master_port: None,
            round: Round { sizes: vec![ranks], run_id: run_id(std::process::id()), ..Round::default() },
            secret: Secret::random(),
        }
    }

    /// Takes the secret from the environment, which the launchers of several machines must share.
    ///
    /// # Errors
    /// If it is empty, or missing although other machines can reach this one.
    pub fn with_shared_secret(self) -> Result<Self> {
        let (master_addr, port) = (&self.master_addr, self.nodes_port());
        let secret = match std::env::var(SECRET) {
            Ok(text) => Secret::new(text)?,
            Err(_) if self.rules.max == 1 => return Ok(self),
            // For trials on one machine only: it distinguishes jobs and does not keep other users out.
            Err(_) if is_loopback(master_addr)? => Secret::new(format!("burn-ddp launch {port}"))?,
            Err(_) => bail!(
                "several nodes use {master_addr}, which other machines can reach, without a secret: set {SECRET} to the same long random text on all nodes (`openssl rand -hex 32` makes one)"
            ),
        };
        Ok(Job { secret, ..self })
    }

    /// The port on which the launchers of several machines meet.
    pub fn nodes_port(&self) -> u16 {
        self.master_port.unwrap_or(NODES_PORT)
    }
}
