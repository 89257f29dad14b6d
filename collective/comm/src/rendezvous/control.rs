//! A rank's connection to the server: joins, uses the store, reports failures and receives the first cause.

use super::{
    GroupProbe, Secret,
    control_client::{ClientState, ControlClient, WatchedGroup},
    secret::HANDSHAKE,
    server::{self, Server},
    tune_control,
    wait::RendezvousWait,
    wire::{Hello, Members, PeerInfo, Request, Stall},
};
use crate::{Error, Result, sync::lock};
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

/// Time limit for the server to name the first cause of a failure.
pub(super) const CAUSE_TIMEOUT: Duration = Duration::from_millis(2500);

/// Time between two attempts to connect, doubled after each of them.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const MAX_PAUSE: Duration = Duration::from_millis(50);

/// A rank's connection to the server. Dropping it announces a clean exit.
pub(crate) struct Control {
    pub(super) client: Arc<ControlClient>,
    /// All ranks.
    pub members: Members,
    /// Address of the server.
    address: String,
}

debug_text! { Control, "Control(rank {} at {})", |control| control.client.rank, control.address }

/// Connects to the server, retrying until `deadline`.
///
/// Fails earlier if the peer does not authenticate: at once for a wrong proof, after five seconds for none.
pub(crate) fn connect(
    address: &str,
    secret: &Secret,
    deadline: Instant,
    wait: &mut RendezvousWait,
) -> Result<TcpStream> {
    let mut strange: Option<Instant> = None;
    let mut pause = FIRST_PAUSE;
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
        let absent = || {
            format!(
                "rank 0, which has to listen there ({failure}); is it running, and are MASTER_ADDR and MASTER_PORT those of rank 0?"
            )
        };
        wait.pause(pause, deadline, address, absent)?;
        pause = (2 * pause).min(MAX_PAUSE);
    }
}

fn attempt(address: impl ToSocketAddrs, deadline: Instant) -> std::io::Result<TcpStream> {
    let mut failure = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
    for address in address.to_socket_addrs()? {
        let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(10));
        match TcpStream::connect_timeout(&address, left.min(Duration::from_secs(5))) {
            // The system may choose the port itself as the connection's own one, if nobody listens.
            Ok(stream) if stream.local_addr().ok() == stream.peer_addr().ok() => {
                failure = std::io::ErrorKind::ConnectionRefused.into();
            }
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

/// Connects to `address` and authenticates, in one attempt.
pub(crate) fn dial<A: ToSocketAddrs + fmt::Display>(
    address: A,
    secret: &Secret,
    deadline: Instant,
) -> Result<TcpStream> {
    let mut stream =
        attempt(&address, deadline).map_err(|e| Error::io(format!("connect to {address}"), &e))?;
    secret.dial(&mut stream, deadline.min(Instant::now() + 2 * HANDSHAKE))?;
    Ok(stream)
}

/// The refusal of the server at `address`, if it belongs to another job.
pub(crate) fn other_job(address: &str, secret: &Secret, job: Option<String>) -> Option<Error> {
    let stream = dial(address, secret, Instant::now() + Duration::from_secs(1)).ok()?;
    let client = ControlClient::start(0, 0, stream).ok()?;
    client.send(&Request::Hello(Hello::new(0, job)));
    // A process of the same job receives no answer.
    let refusal = client.wait(Instant::now() + Duration::from_millis(500), |_| None::<()>).err();
    lock(&client.state).closing = true;
    client.close();
    refusal.filter(|error| matches!(error, Error::Invalid(_)))
}

impl Control {
    /// Joins over an authenticated connection and waits until all ranks have joined. In rank 0's process, `server`
    /// names the missing ranks in errors.
    ///
    /// # Errors
    /// The server's refusal, or [`Error::Rendezvous`] if not all ranks have joined in time.
    pub fn join(
        stream: TcpStream,
        hello: Hello,
        world: usize,
        member: PeerInfo,
        server: Option<&Server>,
        wait: &mut RendezvousWait,
    ) -> Result<Self> {
        let rank = hello.rank;
        let failed = |e| Error::io("join the rendezvous", &e);
        let address = stream.peer_addr().map_err(failed)?.to_string();
        let client =
            tune_control(&stream).and_then(|()| ControlClient::start(rank, world, stream)).map_err(failed)?;
        // From here on, the drop of `control` ends the thread.
        let mut control = Control { client, members: Members::default(), address };
        control.client.send(&Request::Hello(hello));
        control.client.send(&Request::Join { rank, world, member });
        control.members = control.welcome(server, wait)?;
        if control.members.len() != world {
            return Err(Error::Invalid(format!(
                "this rank has world size {world}, but rank 0 has {}",
                control.members.len()
            )));
        }
        Ok(control)
    }

    /// Connects the ranks of one process, in rank order.
    ///
    /// # Errors
    /// [`Error::Io`] if a connection or thread cannot be created.
    pub fn in_process(world: usize) -> Result<Vec<Self>> {
        let failed = |e| Error::io("connect the ranks of this process", &e);
        let streams = server::in_process(world).map_err(failed)?;
        let join = |(rank, stream)| {
            let client = ControlClient::start(rank, world, stream).map_err(failed)?;
            Ok(Control { client, members: Members::default(), address: "this process".into() })
        };
        streams.into_iter().enumerate().map(join).collect()
    }

    /// Waits for all ranks to join.
    fn welcome(&self, server: Option<&Server>, wait: &mut RendezvousWait) -> Result<Members> {
        let came = |until| self.client.wait(until, |state| state.members.take());
        loop {
            let until = if server.is_some() { wait.deadline.min(wait.next_report()) } else { wait.deadline };
            if let Some(members) = came(wait.checked(until))? {
                return Ok(members);
            }
            if wait.is_cancelled() {
                return Err(
                    wait.error(&self.address, "ranks that have not joined; the wait was cancelled".into())
                );
            }
            if wait.left().is_zero() || lock(&self.client.state).gone {
                break;
            }
            if let Some(server) = server {
                wait.report(&self.address, || server.absent());
            }
        }
        self.client.send(&Request::Late { seconds: wait.seconds() });
        came(Instant::now() + CAUSE_TIMEOUT)?
            .ok_or_else(|| wait.error(&self.address, "an answer of rank 0, which does not respond".into()))
    }

    /// The first cause according to the server; `error` if it does not answer.
    fn first_cause(&self, error: Error) -> Error {
        match self.client.wait(Instant::now() + CAUSE_TIMEOUT, |state| state.gone.then_some(())) {
            Err(cause) => cause,
            Ok(gone) => {
                let error = match error {
                    Error::Timeout { call, seconds, absent } if gone.is_none() => {
                        let silent = "rank 0 does not answer (stopped or unreachable)";
                        Error::Timeout { call, seconds, absent: format!("{silent}; {absent}") }
                    }
                    other => other,
                };
                self.client.poison(error.clone());
                error
            }
        }
    }

    /// The server's answer to a request for `key`, if it arrives in time. With `wait`, the server answers
    /// when the key is set.
    pub(super) fn ask(&self, key: &str, wait: bool, deadline: Instant) -> Result<Option<Option<Vec<u8>>>> {
        let id = self.client.requests.fetch_add(1, Ordering::Relaxed);
        self.client.send(&Request::Get { id, key: key.into(), wait });
        self.client.wait(deadline, |state| state.values.remove(&id))
    }

    /// The job's first cause of failure, if it has failed.
    pub fn cause(&self) -> Option<Error> {
        self.client.cause()
    }

    /// Reports this rank's failure and returns the first cause.
    pub fn fail(&self, error: Error) -> Error {
        self.client.send(&Request::Report { error: error.clone() });
        self.first_cause(error)
    }

    /// Reports a call whose deadline has passed and returns the first cause, or `error`.
    pub fn expire(&self, stall: Stall, error: Error) -> Error {
        self.client.send_stall(stall);
        self.first_cause(error)
    }

    /// Registers a group, which is then aborted when the job fails. `last` is the number of its last collective, and
    /// outlives it.
    pub fn watch(&self, id: u64, last: Arc<AtomicU64>, group: &Arc<dyn GroupProbe>) {
        let groups = &mut lock(&self.client.state).groups;
        for group in groups.values_mut() {
            group.probe.take_if(|probe| probe.strong_count() == 0);
        }
        groups.insert(id, WatchedGroup { last, probe: Some(Arc::downgrade(group)) });
    }

    /// Leaves the job if all groups of this rank are closed.
    pub fn group_closed(&self) {
        if self.client.groups().iter().all(|group| group.closed()) {
            self.goodbye();
        }
    }

    /// Announces a clean exit. Idempotent.
    pub fn goodbye(&self) {
        if std::mem::replace(&mut lock(&self.client.state).closing, true) {
            return;
        }
        let last = |(id, group): (&u64, &WatchedGroup)| (*id, group.last.load(Ordering::Relaxed));
        let calls = lock(&self.client.state).groups.iter().map(last).collect();
        self.client.send(&Request::Goodbye { calls });
        // Data connections close after this. A rank that finds one closed must already know the reason.
        let rank = self.client.rank;
        let heard = |state: &mut ClientState| (state.gone || state.left.contains(&rank)).then_some(());
        let _ = self.client.wait(Instant::now() + Duration::from_secs(1), heard);
        self.client.close();
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        if thread::panicking() {
            let rank = self.client.rank;
            self.client
                .send(&Request::Report { error: Error::PeerLost { rank, reason: "it panicked".into() } });
        }
        self.goodbye();
    }
}
