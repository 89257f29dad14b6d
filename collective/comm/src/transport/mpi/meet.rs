//! Rendezvous through MPI: rank 0 broadcasts its address and the job's secret.

use super::{Handle, Library, Mpi};
use crate::{
    Call, DType, Error, Result, Secret, World,
    rendezvous::{address, secret},
    transport::method::{Deadline, Method},
};
use mpi::ffi;
use std::{
    env,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

/// Size of the broadcast address and secret, padded with zeros.
const WORDS: usize = 512;

/// Rank and size of this process in MPI's world.
///
/// # Errors
/// Those of [`Library::get`].
pub(crate) fn world() -> Result<World> {
    Ok(Library::get()?.world)
}

/// Address for rank 0 to listen on, as `host:port`: loopback if all ranks are on its machine.
///
/// All ranks must call it.
///
/// # Errors
/// If MPI fails, or this machine's address towards the others is unknown.
pub(crate) fn address(timeout: Duration) -> Result<String> {
    let library = Library::get()?;
    let mut name = library.host.clone().into_bytes();
    name.resize(WORDS, 0);
    let names =
        with_limits("learn the hosts' names from MPI", timeout, |mpi, limits| mpi.gather_all(limits, name))?;
    let own = &names.recv[..WORDS];
    let Some(other) = names.recv.chunks_exact(WORDS).find(|name| *name != own) else {
        return Ok("127.0.0.1:0".into());
    };
    if let Ok(host) = env::var("MASTER_ADDR") {
        return Ok(address::join(&host, 0));
    }
    let other = text(other);
    // Nothing is sent: the system only chooses the local address of the route.
    let route = || -> std::io::Result<SocketAddr> {
        let socket = UdpSocket::bind("[::]:0").or_else(|_| UdpSocket::bind("0.0.0.0:0"))?;
        socket.connect((other.as_str(), 9))?;
        socket.local_addr()
    };
    let found = route().map_err(|error| {
        Error::io(
            format!("find this machine's address towards {other}; set MASTER_ADDR to it on all ranks"),
            &error,
        )
    })?;
    Ok(SocketAddr::new(found.ip().to_canonical(), 0).to_string())
}

/// Broadcasts rank 0's address and secret, or its error.
///
/// # Errors
/// If MPI fails.
pub(crate) fn publish(word: &Result<(SocketAddr, Secret)>, timeout: Duration) -> Result<()> {
    let text = match word {
        Ok((address, secret)) => format!("+{}", secret::encode_with_address(&address.to_string(), secret)),
        Err(error) => format!("-{error}"),
    };
    let mut words = text.into_bytes();
    words.resize(WORDS, 0);
    broadcast(words, timeout).map(drop)
}

/// Receives rank 0's address and the secret.
///
/// # Errors
/// Rank 0's error, or if MPI fails.
pub(crate) fn look_up(timeout: Duration) -> Result<(String, Secret)> {
    let text = text(&broadcast(vec![0; WORDS], timeout)?);
    let unreadable =
        || Error::Invalid(format!("rank 0 sent {text:?} through MPI, which is not an address and a secret"));
    if let Some(reason) = text.strip_prefix('-') {
        return Err(Error::Remote { rank: 0, reason: reason.into() });
    }
    text.strip_prefix('+').and_then(secret::decode_with_address).ok_or_else(unreadable)
}

fn text(padded: &[u8]) -> String {
    let end = padded.iter().position(|byte| *byte == 0).unwrap_or(padded.len());
    String::from_utf8_lossy(&padded[..end]).into_owned()
}

fn broadcast(words: Vec<u8>, timeout: Duration) -> Result<Vec<u8>> {
    with_limits("learn from MPI where rank 0 listens", timeout, |mpi, limits| {
        mpi.broadcast_piece(limits, 0, words)
    })
}

/// Runs `act` between all processes that MPI has started.
fn with_limits<R>(
    operation: &'static str,
    timeout: Duration,
    act: impl FnOnce(&Mpi, Deadline<'_>) -> Result<R>,
) -> Result<R> {
    // SAFETY: a constant of the library.
    let mpi = Mpi::new(world()?, Handle(unsafe { ffi::RSMPI_COMM_WORLD }));
    let call = Call::new(operation, DType::U8, 0).numbered(0, timeout);
    act(&mpi, mpi.limits(Method::Barrier.of(&call))).map_err(|error| match error {
        Error::Timeout { seconds, .. } => Error::Rendezvous {
            address: "mpi://".into(),
            seconds,
            absent: "some of MPI's ranks, which did not call init".into(),
        },
        other => other,
    })
}
