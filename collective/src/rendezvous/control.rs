//! A rank's end of the control plane: joins, asks the store, reports failures and gets the first
//! cause, says goodbye.

use super::{
    Arbiter, Secret, Watched,
    link::{Link, State},
    secret::HANDSHAKE,
    wire::{Member, Request, Stall},
};
use crate::{Error, Result};
use std::{
    fmt,
    net::{TcpStream, ToSocketAddrs},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How long a rank waits for the server to name the first cause.
const VERDICT: Duration = Duration::from_millis(2500);

/// A rank's connection to the server, closed with a goodbye when dropped.
pub(crate) struct Control {
    link: Arc<Link>,
    members: Vec<Member>,
    /// Where the server is.
    address: String,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Control(rank {} of {} at {})", self.link.rank, self.members.len(), self.address)
    }
}

/// Connects to the server, trying until `deadline`. Gives up earlier on a peer that does not prove
/// the secret: at once if it gives a wrong proof, after five seconds if it gives none.
pub(crate) fn connect(
    address: &str,
    secret: &Secret,
    begun: Instant,
    deadline: Instant,
) -> Result<TcpStream> {
    let mut strange: Option<Instant> = None;
    loop {
        let failure = match attempt(address, deadline) {
            Ok(mut stream) => match secret.dial(&mut stream, deadline.min(Instant::now() + 2 * HANDSHAKE)) {
                Ok(()) => return Ok(stream),
                Err(Error::Io { reason, .. }) => {
                    if strange.get_or_insert_with(Instant::now).elapsed() > Duration::from_secs(5) {
                        let reason = format!("{reason}; does another program listen there?");
                        return Err(Error::Unauthenticated { peer: address.into(), reason });
                    }
                    reason
                }
                Err(error) => return Err(error),
            },
            Err(error) => error.to_string(),
        };
        if Instant::now() + Duration::from_millis(50) > deadline {
            return Err(Error::Rendezvous {
                address: address.into(),
                seconds: begun.elapsed().as_secs_f64(),
                absent: format!(
                    "rank 0, which has to listen there ({failure}); is it running, and are MASTER_ADDR and MASTER_PORT those of rank 0?"
                ),
            });
        }
        thread::sleep(Duration::from_millis(50));
    }
}

pub(crate) fn attempt(address: &str, deadline: Instant) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(5))) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

impl Control {
    /// Joins over a proven connection and waits until all ranks have.
    pub fn join(
        stream: TcpStream,
        rank: usize,
        world: usize,
        member: Member,
        begun: Instant,
        deadline: Instant,
    ) -> Result<Self> {
        let failed = |e| Error::io("join the rendezvous", &e);
        let address = stream.peer_addr().map_err(failed)?.to_string();
        let link = Link::start(rank, stream).map_err(failed)?;
        // From here on the goodbye in `drop` ends the thread.
        let mut control = Control { link, members: Vec::new(), address };
        control.link.send(&Request::Join { rank, world, member });
        let seconds = |now: Instant| now.duration_since(begun).as_secs_f64();
        control.members = match control.link.wait(deadline, |state| state.members.clone())? {
            Some(members) => members,
            None => {
                control.link.send(&Request::Late { seconds: seconds(Instant::now()) });
                let verdict = Instant::now() + VERDICT;
                control.link.wait(verdict, |state| state.members.clone())?.ok_or_else(|| {
                    Error::Rendezvous {
                        address: control.address.clone(),
                        seconds: seconds(Instant::now()),
                        absent: "an answer of rank 0, which does not respond".into(),
                    }
                })?
            }
        };
        if control.members.len() != world {
            return Err(Error::Invalid(format!(
                "rank 0 counts {} ranks, not {world}",
                control.members.len()
            )));
        }
        Ok(control)
    }

    /// All ranks, in rank order.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What the server says was first, if it answers.
    fn verdict(&self, error: Error) -> Error {
        match self.link.wait(Instant::now() + VERDICT, |state| state.gone.then_some(())) {
            Err(cause) => cause,
            Ok(gone) => {
                let error = match error {
                    Error::Timeout { call, seconds, absent } if gone.is_none() => {
                        let silent = "rank 0 does not answer (stopped or unreachable)";
                        Error::Timeout { call, seconds, absent: format!("{silent}; this rank was {absent}") }
                    }
                    other => other,
                };
                self.link.poison(error.clone());
                error
            }
        }
    }

    /// Stores a value for all ranks.
    pub fn set(&self, key: &str, value: &[u8]) {
        self.link.send(&Request::Set { key: key.into(), value: value.into() });
    }

    /// The value of `key`, waiting until somebody sets it.
    pub fn get(&self, key: &str, deadline: Instant) -> Result<Vec<u8>> {
        let begun = Instant::now();
        let id = self.link.requests.fetch_add(1, Ordering::Relaxed);
        self.link.send(&Request::Get { id, key: key.into() });
        self.link.wait(deadline, |state| state.values.remove(&id))?.ok_or_else(|| Error::Timeout {
            call: format!("store key {key:?}"),
            seconds: begun.elapsed().as_secs_f64(),
            absent: "no rank has set it".into(),
        })
    }
}

impl Arbiter for Control {
    fn cause(&self) -> Option<Error> {
        self.link.cause()
    }

    fn fail(&self, error: Error) -> Error {
        self.link.send(&Request::Report { error: error.clone() });
        self.verdict(error)
    }

    fn expire(&self, stall: Stall, error: Error) -> Error {
        self.link.send(&Request::Stall(stall));
        self.verdict(error)
    }

    fn watch(&self, group: &Arc<dyn Watched>) {
        let mut state = self.link.lock();
        state.groups.retain(|group| group.strong_count() > 0);
        state.groups.push(Arc::downgrade(group));
        state.counters.insert(group.id(), group.counter());
    }

    fn goodbye(&self) {
        if std::mem::replace(&mut self.link.lock().closing, true) {
            return;
        }
        let last = |(group, last): (&u64, &Arc<AtomicU64>)| (*group, last.load(Ordering::Relaxed));
        let calls = self.link.lock().counters.iter().map(last).collect();
        self.link.send(&Request::Goodbye { calls });
        // Data connections close after this: whoever finds them closed must find the reason, too.
        let rank = self.link.rank;
        let heard = |state: &mut State| (state.gone || state.left.contains(&rank)).then_some(());
        let _ = self.link.wait(Instant::now() + Duration::from_secs(1), heard);
        self.link.close();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if thread::panicking() {
            let rank = self.link.rank;
            self.link
                .send(&Request::Report { error: Error::PeerLost { rank, reason: "it panicked".into() } });
        }
        self.goodbye();
    }
}
