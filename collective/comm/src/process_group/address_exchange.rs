//! Joining of a job's processes: exchange of rank 0's address, then the rendezvous.

use super::config::{Exchange, RendezvousConfig};
use crate::{
    Error, Result, Secret,
    rendezvous::{
        control::{Control, connect, other_job},
        host, secret,
        server::Server,
        store::Store,
        wait::RendezvousWait,
        wire::{Hello, PeerInfo},
    },
    transport::{mpi, tcp::ConnectionPool},
};
use std::{
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

/// Starts the server on rank 0, then joins it on every rank, rank 0 included.
pub(super) fn start(
    config: &RendezvousConfig,
    server: &mut Option<Server>,
    wait: &mut RendezvousWait,
) -> Result<(Control, ConnectionPool)> {
    let RendezvousConfig { exchange, options, .. } = config;
    let (stream, secret) = match (config.rank, exchange) {
        (0, exchange) => {
            let served = serve(config, server);
            match exchange {
                Exchange::Store { store, key, .. } => {
                    let (address, secret) = &served.clone()?;
                    store.set(key, secret::encode_with_address(&address.to_string(), secret).as_bytes())?;
                }
                Exchange::Mpi => mpi::publish(&served, wait.left())?,
                Exchange::Known(_) => {}
            }
            let (address, secret) = served?;
            // The listener knows the actual port, and a wildcard address cannot be connected to.
            let mut own = address;
            if own.ip().is_unspecified() {
                own.set_ip(if own.is_ipv4() {
                    Ipv4Addr::LOCALHOST.into()
                } else {
                    Ipv6Addr::LOCALHOST.into()
                });
            }
            (connect(&own.to_string(), &secret, wait.deadline, wait)?, secret)
        }
        (_, Exchange::Store { store, key, name }) => connect_by_store(store.as_ref(), key, name, wait)?,
        (_, Exchange::Mpi) => {
            let (address, secret) = mpi::look_up(wait.left())?;
            (connect(&address, &secret, wait.deadline, wait)?, secret)
        }
        (_, Exchange::Known(_)) => {
            let secret = config.secret()?;
            (connect(&config.address, &secret, wait.deadline, wait)?, secret)
        }
    };
    // The local address of the connection to rank 0 is the one at which the other ranks can reach this rank.
    let local = stream.local_addr().map_err(|e| Error::io("find this rank's address", &e))?;
    let pool = ConnectionPool::start(local.ip(), config.rank, secret)?;
    let member = PeerInfo {
        data: pool.address(),
        host: host(),
        machine: options.host_id.clone().unwrap_or_else(machine),
        pid: std::process::id(),
        transport: options.transport.name().to_string(),
    };
    let hello = Hello::new(config.rank, options.group_name.clone());
    let control = Control::join(stream, hello, config.world, member, server.as_ref(), wait)?;
    if let (0, Exchange::Store { store, key, .. }) = (config.rank, exchange) {
        // All ranks have read it. A later job must not.
        let _ = store.delete(key);
    }
    Ok((control, pool))
}

/// Starts rank 0's server. Returns its address and the job's secret, which is random if it can be sent to the
/// others.
fn serve(config: &RendezvousConfig, server: &mut Option<Server>) -> Result<(SocketAddr, Secret)> {
    let job = &config.options.group_name;
    let listener = config.listen().map_err(|error| {
        // Another job may listen there; its server names that job to a process with the same secret.
        let other = config.secret().ok().and_then(|secret| other_job(&config.address, &secret, job.clone()));
        other.unwrap_or(error)
    })?;
    let address = listener.local_addr().map_err(|e| Error::io("find the rendezvous address", &e))?;
    let secret = match config.exchange {
        Exchange::Store { .. } | Exchange::Mpi => {
            config.options.secret.clone().unwrap_or_else(Secret::random)
        }
        Exchange::Known(_) => config.secret()?,
    };
    *server = Some(Server::start(listener, config.world, secret.clone(), job.clone())?);
    Ok((address, secret))
}

/// Polls the store until its value leads to rank 0. The first value may be an earlier job's.
fn connect_by_store(
    store: &dyn Store,
    key: &str,
    name: &str,
    wait: &mut RendezvousWait,
) -> Result<(TcpStream, Secret)> {
    let mut last = None;
    loop {
        let value = store.try_get(key)?;
        if let Some((address, secret)) =
            value.and_then(|value| secret::decode_with_address(&String::from_utf8(value).ok()?))
        {
            let deadline = wait.deadline.min(Instant::now() + Duration::from_secs(1));
            match connect(&address, &secret, deadline, wait) {
                Ok(stream) => return Ok((stream, secret)),
                Err(error) => last = Some(error),
            }
        }
        let absent = || {
            let why = last.as_ref().map_or_else(|| "no address is there yet".into(), Error::to_string);
            format!("rank 0, which writes its address there ({why})")
        };
        wait.pause(Duration::from_millis(20), wait.deadline, name, absent)?;
    }
}

/// Identity of this machine: equal on two ranks if they can share memory.
///
/// It consists of the running kernel, the PID namespace (each container has its own) and the user.
fn machine() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let processes = std::fs::read_link("/proc/self/ns/pid").unwrap_or_default();
    let user = rustix::process::geteuid().as_raw();
    format!("{} {} {} user {user}", host(), boot.trim(), processes.display())
}
