//! From what the caller, the environment or a file says to who and where this rank is.

use super::{InitMethod, Secret};
use crate::{
    Error, Options, Result,
    transport::{Transport, mpi},
};
use std::{
    env,
    mem::ManuallyDrop,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::{FromRawFd, RawFd},
    sync::atomic::{AtomicBool, Ordering},
};

/// Who this rank is, and the `host:port` and secret it meets the others with.
#[derive(Debug)]
pub(crate) struct Plan {
    pub rank: usize,
    pub world: usize,
    /// Where rank 0 listens. The port is 0 if rank 0 publishes the real one.
    pub address: String,
    pub secret: Option<Secret>,
    /// The job's id.
    pub job: Option<String>,
    /// Whether rank 0 may use the launcher's listening socket, which is bound to `MASTER_PORT`.
    inherits: bool,
}

/// A variable's number; `None` if it is not set.
fn number<T: std::str::FromStr>(name: &str, what: &str) -> Result<Option<T>> {
    let Ok(text) = env::var(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(Error::Invalid(format!("environment variable {name} is {text:?}; it must be {what}"))),
    }
}

fn required<T>(value: Option<T>, name: &str, method: &str) -> Result<T> {
    value.ok_or_else(|| {
        Error::Invalid(format!(
            "{method} needs the environment variable {name}, which is not set: start the processes with a launcher (burn-ddp launch, torchrun), or set it"
        ))
    })
}

/// Environment variable that holds the job's secret.
pub const SECRET: &str = "BURN_DDP_SECRET";
/// Environment variable that holds the number of an open listening socket, from a launcher that
/// bound the master port and hands it to rank 0.
pub const MASTER_FD: &str = "BURN_DDP_MASTER_FD";

impl Plan {
    /// Settles rank, world size, address and secret. No `method` means a store.
    pub fn new(method: Option<&InitMethod>, options: &Options) -> Result<Self> {
        let mpi = match method {
            Some(InitMethod::Mpi) => Some(mpi::world()?),
            Some(InitMethod::Env | InitMethod::Tcp(_) | InitMethod::File(_)) | None => None,
        };
        let name = &method.map_or_else(|| "init_with_store".into(), InitMethod::to_string);
        let rank = match options.rank.or(mpi.map(|mpi| mpi.rank)) {
            Some(rank) => rank,
            None => required(number("RANK", "a rank, a whole number from 0")?, "RANK", name)?,
        };
        let world = match options.world_size.or(mpi.map(|mpi| mpi.size)) {
            Some(world) => world,
            None => required(number("WORLD_SIZE", "a number of processes, from 1")?, "WORLD_SIZE", name)?,
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
        if mpi.is_some() || options.transport == Transport::Mpi {
            let mpi = mpi::world()?;
            if (mpi.rank, mpi.size) != (rank, world) {
                return Err(Error::Invalid(format!(
                    "this is rank {rank} of {world}, but to MPI it is rank {} of {}: start it with mpirun, and leave rank and world size to mpi://",
                    mpi.rank, mpi.size
                )));
            }
        }
        let address = match method {
            Some(InitMethod::Mpi | InitMethod::Env) if world == 1 => String::new(),
            Some(InitMethod::Mpi) => mpi::address(options.rendezvous_timeout)?,
            Some(InitMethod::Env) => {
                let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
                let port: u16 = required(number("MASTER_PORT", "a port, 1 to 65535")?, "MASTER_PORT", name)?;
                // torchrun's agent listens on MASTER_PORT itself and says so here; then rank 0
                // takes the port after it.
                let taken = env::var("TORCHELASTIC_USE_AGENT_STORE").is_ok_and(|value| value == "True");
                let port = if taken { port.checked_add(1) } else { Some(port) };
                let port = port.ok_or_else(|| Error::Invalid("MASTER_PORT is 65535; under torchrun the port after it is needed, so choose a lower one".into()))?;
                // An IPv6 address needs brackets before a port.
                if host.contains(':') && !host.starts_with('[') {
                    format!("[{host}]:{port}")
                } else {
                    format!("{host}:{port}")
                }
            }
            Some(InitMethod::Tcp(address)) => address.clone(),
            Some(InitMethod::File(_)) | None => {
                let host = env::var("MASTER_ADDR").unwrap_or_else(|_| "127.0.0.1".into());
                format!("{host}:0")
            }
        };
        let secret = match (&options.secret, env::var(SECRET)) {
            (Some(secret), _) => Some(secret.clone()),
            (None, Ok(text)) => Some(Secret::new(text)?),
            (None, Err(_)) => None,
        };
        let (job, inherits) = (options.group_name.clone(), method == Some(&InitMethod::Env));
        Ok(Plan { rank, world, address, secret, job, inherits })
    }

    /// The secret that connections prove: the one given, or on loopback one derived from the
    /// address. Between machines there must be one.
    pub fn secret(&self) -> Result<Secret> {
        match &self.secret {
            Some(secret) => Ok(secret.clone()),
            None if self.loopback()? => Ok(Secret::derived(&self.address)),
            None => Err(Error::Invalid(format!(
                "the world meets at {}, which is not this machine alone, and there is no secret: set BURN_DDP_SECRET to the same long random text on all ranks",
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

    /// Rank 0's listener: the one inherited from the launcher, or a new one.
    pub fn listen(&self) -> Result<TcpListener> {
        if self.inherits
            && let Some(listener) = inherited()?
        {
            return Ok(listener);
        }
        let addresses = self.resolve()?;
        let failure = match TcpListener::bind(&addresses[..]) {
            Ok(listener) => return Ok(listener),
            Err(error) => error,
        };
        // A service name or a translated address stands for this machine without being its own.
        if failure.kind() == std::io::ErrorKind::AddrNotAvailable && !self.loopback()? {
            let any = |ip| SocketAddr::new(ip, addresses[0].port());
            let any = [any(IpAddr::V6(Ipv6Addr::UNSPECIFIED)), any(IpAddr::V4(Ipv4Addr::UNSPECIFIED))];
            if let Ok(listener) = TcpListener::bind(&any[..]) {
                return Ok(listener);
            }
        }
        Err(Error::io(
            format!(
                "rank 0 cannot listen on {}; choose another MASTER_PORT if the port is taken, and check that MASTER_ADDR is an address of this machine",
                self.address
            ),
            &failure,
        ))
    }
}

/// The listening socket that the launcher keeps bound and hands over, so that nobody can take the
/// port in between: its number is in `BURN_DDP_MASTER_FD`. Only the first group of a process can
/// have it.
fn inherited() -> Result<Option<TcpListener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let Some(fd) = number::<RawFd>(MASTER_FD, "the number of an open listening socket")? else {
        return Ok(None);
    };
    if TAKEN.swap(true, Ordering::SeqCst) {
        return Ok(None);
    }
    let refuse = |why: &str| {
        Error::Invalid(format!(
            "environment variable BURN_DDP_MASTER_FD is {fd}, but {why}; it is for launchers, unset it"
        ))
    };
    if fd < 3 {
        return Err(refuse("0 to 2 are the standard streams"));
    }
    // SAFETY: `getsockopt` accepts any number; it only looks.
    let listening = unsafe {
        let (mut value, mut size) = (0 as libc::c_int, size_of::<libc::c_int>() as libc::socklen_t);
        libc::getsockopt(fd, libc::SOL_SOCKET, libc::SO_ACCEPTCONN, (&raw mut value).cast(), &mut size) == 0
            && value == 1
    };
    if !listening {
        return Err(refuse("that is no listening socket"));
    }
    // SAFETY: an open socket, which is not closed here unless it is the launcher's.
    let listener = ManuallyDrop::new(unsafe { TcpListener::from_raw_fd(fd) });
    // The number may be left over from a launcher further up, and by now be another socket's.
    let expected = number::<u16>("MASTER_PORT", "a port, 1 to 65535")?;
    match (listener.local_addr(), expected) {
        (Err(_), _) => return Err(refuse("that is not a TCP socket")),
        (Ok(found), Some(expected)) if found.port() != expected => {
            return Err(refuse(&format!("that socket listens on {found} and MASTER_PORT is {expected}")));
        }
        (Ok(_), _) => {}
    }
    // SAFETY: it is the socket that the launcher made for this process, and the flag above gives it to
    // one caller only.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
    Ok(Some(ManuallyDrop::into_inner(listener)))
}

/// The store value with rank 0's address and the job's secret.
pub(crate) fn written(address: &str, secret: &Secret) -> String {
    format!("{address}\n{}\n", secret.expose())
}

/// The inverse of [`written`].
pub(crate) fn parse(text: &str) -> Option<(String, Secret)> {
    let (address, secret) = text.split_once('\n')?;
    let secret = Secret::new(secret.strip_suffix('\n')?).ok()?;
    Some((address.into(), secret))
}
