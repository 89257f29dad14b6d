//! A machine's side: joins each round at the hub, reports its end and hears the verdict.

use super::{
    super::{ending::Ending, signals::Signals},
    FromHub, Join, ToHub,
};
use crate::console::last_words;
use anyhow::{Context, Result, bail};
use collective::{
    Error, Secret,
    channel::{Channel, Received},
};
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// After this long, the user is told what is waited for.
const QUIET: Duration = Duration::from_secs(5);
/// How long one attempt to reach the hub lasts before signals are looked at.
const TRY: Duration = Duration::from_secs(2);
/// With less time left than this, an attempt was the last one.
const SOON: Duration = Duration::from_millis(100);

/// A round as the hub opens it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    pub restarts: usize,
    pub max_restarts: usize,
    /// This machine's number in the round.
    pub node: usize,
    /// Ranks on each machine.
    pub sizes: Vec<usize>,
    pub master_port: u16,
    pub run_id: String,
}

/// A launcher's connection to the hub.
#[derive(Debug)]
pub struct Agent {
    channel: Channel,
    address: String,
    /// The round that runs.
    restarts: usize,
}

impl Agent {
    /// Connects to the hub at `address`, trying for `patience`; `None` if a signal came first.
    ///
    /// # Errors
    /// If nobody answers there, or knows another secret.
    pub fn connect(
        address: &str,
        secret: &Secret,
        patience: Duration,
        signals: &Signals,
    ) -> Result<Option<Self>> {
        let (asked, mut told) = (Instant::now(), false);
        let deadline = asked + patience;
        loop {
            match Channel::dial(address, secret, deadline.min(Instant::now() + TRY)) {
                Ok(channel) => return Ok(Some(Agent { channel, address: address.to_owned(), restarts: 0 })),
                Err(_) if signals.first().is_some() => return Ok(None),
                Err(error)
                    if matches!(error, Error::Unauthenticated { .. }) || Instant::now() + SOON > deadline =>
                {
                    return Err(error).with_context(|| {
                        format!("node 0's launcher was not found at {address} (--master-addr, --master-port)")
                    });
                }
                Err(error) if !told && asked.elapsed() > QUIET => {
                    last_words(&format!("still looking for node 0's launcher: {error}"));
                    told = true;
                }
                Err(_) => {}
            }
        }
    }

    /// Joins the next round and waits until it begins; `None` if a signal came first.
    ///
    /// # Errors
    /// If the hub refuses, or is gone.
    pub fn join(&mut self, node: usize, ranks: usize, signals: &Signals) -> Result<Option<Begin>> {
        self.channel.send(&ToHub::Join(Join { node, ranks, host: collective::host() }))?;
        let (asked, mut told) = (Instant::now(), false);
        loop {
            match self.channel.receive(Duration::from_millis(100))? {
                Received::Message(FromHub::Begin(begin)) => {
                    self.restarts = begin.restarts;
                    return Ok(Some(begin));
                }
                Received::Message(FromHub::Refused(why)) => bail!("{why}"),
                // Of a round that this machine has left.
                Received::Message(FromHub::End { .. }) | Received::Nothing => {}
                Received::Closed => bail!("node 0's launcher at {} has gone", self.address),
            }
            if signals.first().is_some() {
                return Ok(None);
            }
            if !told && asked.elapsed() > QUIET {
                last_words(&format!("node {node} waits at {} for the next round to begin", self.address));
                told = true;
            }
        }
    }

    /// Tells the hub how the round ended here.
    pub fn tell(&self, ending: Ending) {
        // If the hub is gone, `verdict` says so.
        let _ = self.channel.send(&ToHub::Ended { restarts: self.restarts, ending });
    }

    /// How the round ended everywhere, if it has. Hardly waits.
    pub fn verdict(&mut self) -> Option<Ending> {
        let lost = |why: String| Some(Ending::Lost { node: 0, reason: format!("cannot be reached: {why}") });
        match self.channel.receive(Duration::from_millis(1)) {
            Ok(Received::Message(FromHub::End { restarts, ending })) if restarts == self.restarts => {
                Some(ending)
            }
            Ok(Received::Message(FromHub::Refused(why))) => lost(why),
            Ok(Received::Message(FromHub::End { .. } | FromHub::Begin(_)) | Received::Nothing) => None,
            Ok(Received::Closed) => lost("its launcher has gone".into()),
            Err(error) => lost(error.to_string()),
        }
    }
}
