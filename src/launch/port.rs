//! The port at which rank 0 will listen, chosen before anybody runs.

use anyhow::{Context, Result};
use std::{
    io,
    net::{SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd},
};

/// A port kept from other programs until the round ends.
#[derive(Debug)]
pub enum MasterPort {
    /// Bound and listening; rank 0 inherits the socket. For programs that use our engine.
    Handed(TcpListener, u16),
    /// Bound, but not listening: the system gives it to nobody who asks for any port, and rank 0,
    /// whatever its program is, can still bind it, as PyTorch and the engine do (`SO_REUSEADDR`).
    Reserved(#[expect(dead_code, reason = "held, not used")] OwnedFd, u16),
    /// The user's own choice.
    Given(u16),
}

impl MasterPort {
    /// A listening socket on a free port of `host`.
    ///
    /// # Errors
    /// If none can be bound there.
    pub fn handed(host: &str) -> Result<Self> {
        let listener =
            TcpListener::bind((host, 0)).with_context(|| format!("cannot bind a port on {host}"))?;
        let port = listener.local_addr().context("cannot read the bound port")?.port();
        Ok(MasterPort::Handed(listener, port))
    }

    /// A free port of this machine that only its own rank 0 will take.
    ///
    /// # Errors
    /// If the system has no port left.
    pub fn reserved() -> Result<Self> {
        reserve().map(|(socket, port)| MasterPort::Reserved(socket, port)).context("cannot reserve a port")
    }

    /// The port's number.
    pub fn number(&self) -> u16 {
        match self {
            MasterPort::Handed(_, port) | MasterPort::Reserved(_, port) | MasterPort::Given(port) => *port,
        }
    }

    /// The socket that rank 0 inherits, if it does.
    pub fn inherited(&self) -> Option<RawFd> {
        match self {
            MasterPort::Handed(listener, _) => Some(listener.as_raw_fd()),
            MasterPort::Reserved(..) | MasterPort::Given(_) => None,
        }
    }
}

/// Binds a wildcard port without listening.
fn reserve() -> io::Result<(OwnedFd, u16)> {
    let check = |result: i32| if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) };
    // SAFETY: plain socket calls on memory of our own; the descriptor is owned as soon as it exists.
    unsafe {
        let socket = OwnedFd::from_raw_fd(check(libc::socket(libc::AF_INET, libc::SOCK_STREAM, 0))?);
        let fd = socket.as_raw_fd();
        check(libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC))?;
        let yes: libc::c_int = 1;
        let size = size_of::<libc::c_int>() as libc::socklen_t;
        check(libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_REUSEADDR, (&raw const yes).cast(), size))?;
        let mut address: libc::sockaddr_in = std::mem::zeroed();
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        let mut size = size_of::<libc::sockaddr_in>() as libc::socklen_t;
        check(libc::bind(fd, (&raw const address).cast(), size))?;
        check(libc::getsockname(fd, (&raw mut address).cast(), &mut size))?;
        Ok((socket, u16::from_be(address.sin_port)))
    }
}

/// Whether every address of `host` is this machine alone.
///
/// # Errors
/// If the name is not known.
pub fn is_loopback(host: &str) -> Result<bool> {
    let addresses: Vec<SocketAddr> =
        (host, 0).to_socket_addrs().with_context(|| format!("--master-addr {host}: no such host"))?.collect();
    Ok(addresses.iter().all(|address| address.ip().is_loopback()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserved_port_can_still_be_bound_by_rank_0() {
        let port = MasterPort::reserved().expect("a port");
        // The standard library binds with SO_REUSEADDR.
        let listener = TcpListener::bind(("127.0.0.1", port.number())).expect("rank 0 binds it");
        assert_eq!(listener.local_addr().expect("bound").port(), port.number());
    }

    #[test]
    fn loopback_is_told_from_other_hosts() {
        assert!(is_loopback("127.0.0.1").expect("known") && is_loopback("localhost").expect("known"));
        assert!(!is_loopback("192.0.2.1").expect("an address"));
    }
}
