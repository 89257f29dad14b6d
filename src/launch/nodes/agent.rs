//! A machine's connection to the coordinator: joins each round, reports its outcome and receives the
//! decision.

use super::{
    super::{
        environment::Round,
        outcome::{Decision, News, Outcome},
    },
    FromCoordinator, Join, ToCoordinator,
};
use crate::process::{console::eprint_line, stop};
use anyhow::{Context, Result, bail};
use collective::{
    Error, Secret,
    channel::{Channel, Received},
};
use std::time::{Duration, Instant};

/// Time after which a message names what the launcher waits for.
const QUIET: Duration = Duration::from_secs(5);
/// Time limit of one attempt to connect, after which signals are checked.
const TRY: Duration = Duration::from_secs(2);
/// With less time left than this, no further attempt is made.
const SOON: Duration = Duration::from_millis(100);

/// A launcher's connection to the coordinator.
#[derive(Debug)]
pub struct Agent {
    channel: Channel,
    address: String,
}

impl Agent {
    /// Connects to the coordinator at `address`, retrying for `timeout`; `None` after a stop signal.
    ///
    /// # Errors
    /// If no coordinator answers, or the secrets differ.
    pub fn connect(address: &str, secret: &Secret, timeout: Duration) -> Result<Option<Self>> {
        let (begun, mut told) = (Instant::now(), false);
        let deadline = begun + timeout;
        loop {
            match Channel::dial(address, secret, deadline.min(Instant::now() + TRY)) {
                Ok(channel) => return Ok(Some(Agent { channel, address: address.to_owned() })),
                Err(_) if stop::signal().is_some() => return Ok(None),
                Err(error)
                    if matches!(error, Error::Unauthenticated { .. }) || Instant::now() + SOON > deadline =>
                {
                    return Err(error).with_context(|| {
                        format!("node 0's launcher was not found at {address} (--master-addr, --master-port)")
                    });
                }
                Err(error) if !told && begun.elapsed() > QUIET => {
                    eprint_line(&format!("waiting for the launcher of node 0: {error}"));
                    told = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Joins the next round and waits until it begins; `None` after a stop signal.
    ///
    /// # Errors
    /// If the coordinator refuses this machine or closes the connection.
    pub fn join(&mut self, node: usize, ranks: usize) -> Result<Option<Round>> {
        self.channel.send(&ToCoordinator::Join(Join { node, ranks, host: collective::host() }))?;
        let (begun, mut told) = (Instant::now(), false);
        loop {
            match self.channel.receive(Duration::from_millis(100))? {
                Received::Message(FromCoordinator::Begin(round)) => return Ok(Some(round)),
                Received::Message(FromCoordinator::Refused(why)) => bail!("{why}"),
                Received::Message(FromCoordinator::Decided(_)) | Received::Nothing => {}
                Received::Closed => bail!("node 0's launcher at {} closed the connection", self.address),
            }
            if stop::signal().is_some() {
                return Ok(None);
            }
            if !told && begun.elapsed() > QUIET {
                eprint_line(&format!("node {node} is waiting at {} for the next round", self.address));
                told = true;
            }
        }
    }

    /// Reports news of this machine's ranks, or of this machine.
    pub fn tell(&self, news: News) {
        // A lost connection is reported by `decision`.
        let _ = self.channel.send(&ToCoordinator::News(news));
    }

    /// What all machines do, if it is decided. Waits at most a millisecond.
    pub fn decision(&mut self) -> Option<Decision> {
        let why = match self.channel.receive(Duration::from_millis(1)) {
            Ok(Received::Message(FromCoordinator::Decided(decision))) => return Some(decision),
            Ok(Received::Message(FromCoordinator::Begin(_)) | Received::Nothing) => return None,
            Ok(Received::Message(FromCoordinator::Refused(why))) => why,
            Ok(Received::Closed) => "its launcher closed the connection".into(),
            Err(error) => error.to_string(),
        };
        Some(Decision::End(Outcome::Lost { node: 0, reason: format!("cannot be reached: {why}") }))
    }
}
