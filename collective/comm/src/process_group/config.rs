//! This rank's rank, world size, address and secret, from options and environment.

use crate::{
    Error, Options, Result, SECRET, Secret, Store, address,
    transport::{Transport, mpi},
};
use std::{
    env,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    sync::Arc,
};

/// How the other ranks receive rank 0's address and the secret.
pub(super) enum Exchange {
    /// From their configuration: this address, or without one that of the environment.
    Known(Option<String>),
    /// From a key of a store. `name` is for messages.
    Store { store: Arc<dyn Store>, key: String, name: String },
    /// Through an MPI broadcast.
    Mpi,
}

/// How this rank joins the others: its rank and address, the exchange of addresses, and the options.
pub(super) struct RendezvousConfig {
    pub rank: usize,
    pub world: usize,
    /// Address of rank 0. The port is 0 if rank 0 publishes the actual one.
    pub address: String,
    pub exchange: Exchange,
    /// With the secret of the environment, if no other one is set.
    pub options: Options,
}

/// The number in an environment variable that `method` needs.
fn number<T: std::str::FromStr>(name: &str, what: &str, method: &str) -> Result<T> {
    let Ok(text) = env::var(name) else {
        return Err(Error::Invalid(format!(
            "{method} needs the environment variable {name}, which is not set: start the processes with a launcher (burn-ddp launch, torchrun), or set it"
        )));
    };
    let invalid = |_| Error::Invalid(format!("environment variable {name} is {text:?}; it must be {what}"));
    text.trim().parse().map_err(invalid)
}

impl RendezvousConfig {
    /// Determines rank, world size, address and secret. `method` is for messages.
    ///
    /// # Errors
    /// [`Error::Invalid`] if a value is missing or not valid; those of MPI.
    pub fn new(method: &str, exchange: Exchange, mut options: Options) -> Result<Self> {
        let by_mpi = matches!(exchange, Exchange::Mpi);
        let mpi = by_mpi.then(mpi::world).transpose()?;
        let rank = match options.rank.or(mpi.map(|mpi| mpi.rank)) {
            Some(rank) => rank,
            None => number("RANK", "a rank, a whole number from 0", method)?,
        };
        let world = match options.world_size.or(mpi.map(|mpi| mpi.size)) {
            Some(world) => world,
            None => number("WORLD_SIZE", "a number of processes, from 1", method)?,
        };
        if world == 0 {
            return Err(Error::Invalid("the world size is 0; it must be at least 1".into()));
        }
        if rank >= world {
            return Err(Error::Invalid(format!(
                "rank {rank} does not exist in a world of {world}: ranks are 0 to {} (RANK, WORLD_SIZE)",
                world - 1
            )));
        }
        if by_mpi || options.transport == Transport::Mpi {
            let mpi = mpi::world()?;
            if (mpi.rank, mpi.size) != (rank, world) {
                return Err(Error::Invalid(format!(
                    "this is rank {rank} of {world}, but MPI reports rank {} of {}: start it with mpirun, and leave rank and world size to mpi://",
                    mpi.rank, mpi.size
                )));
            }
        }
        let address = match &exchange {
            Exchange::Known(Some(address)) => address.clone(),
            Exchange::Known(None) | Exchange::Mpi if world == 1 => String::new(),
            Exchange::Mpi => mpi::address(options.join_timeout())?,
            Exchange::Known(None) => {
                let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
                let port: u16 = number("MASTER_PORT", "a port, 1 to 65535", method)?;
                // With this variable, torchrun's agent listens on MASTER_PORT itself, and rank 0 uses the
                // next port.
                let taken = env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value == "True");
                let port = if taken { port.checked_add(1) } else { Some(port) };
                let port = port.ok_or_else(|| {
                    Error::Invalid(
                        "MASTER_PORT is 65535; torchrun also needs the next port, so choose a lower one"
                            .into(),
                    )
                })?;
                address::join(&host, port)
            }
            Exchange::Store { .. } => {
                let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
                address::join(&host, 0)
            }
        };
        if let (None, Ok(text)) = (&options.secret, env::var(SECRET)) {
            options.secret = Some(Secret::new(text)?);
        }
        Ok(RendezvousConfig { rank, world, address, exchange, options })
    }

    /// The job's secret: configured, or on loopback derived from the address.
    ///
    /// A job over several machines needs a configured one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the job spans machines and no secret is configured.
    pub fn secret(&self) -> Result<Secret> {
        match &self.options.secret {
            Some(secret) => Ok(secret.clone()),
            None if self.loopback()? => Ok(Secret::derived(&self.address)),
            None => Err(Error::Invalid(format!(
                "the ranks meet at {}, which other machines can reach, without a secret: set BURN_DDP_SECRET to the same long random text on all ranks",
                self.address
            ))),
        }
    }

    fn resolve(&self) -> Result<Vec<SocketAddr>> {
        let failed = |why: String| {
            Error::Invalid(format!(
                "the rendezvous address {:?} is unusable: {why}; check MASTER_ADDR",
                self.address
            ))
        };
        let addresses: Vec<_> = self.address.to_socket_addrs().map_err(|e| failed(e.to_string()))?.collect();
        if addresses.is_empty() { Err(failed("the name has no address".into())) } else { Ok(addresses) }
    }

    fn loopback(&self) -> Result<bool> {
        Ok(self.resolve()?.iter().all(|address| address.ip().is_loopback()))
    }

    /// Rank 0's listener.
    ///
    /// # Errors
    /// If the address cannot be resolved or bound.
    pub fn listen(&self) -> Result<TcpListener> {
        address::bind(&self.resolve()?).map_err(|error| {
            Error::io(
                format!(
                    "rank 0 cannot listen on {}; choose another MASTER_PORT if the port is taken, and check that MASTER_ADDR is an address of this machine",
                    self.address
                ),
                &error,
            )
        })
    }
}
