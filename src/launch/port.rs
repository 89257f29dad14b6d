//! The port on which rank 0 will listen.

use anyhow::{Context, Result};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketType, bind, getsockname, socket_with, sockopt},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener, ToSocketAddrs},
    os::fd::{AsRawFd, OwnedFd, RawFd},
};

/// A port that is kept from other programs until the round ends.
#[derive(Debug)]
pub enum MasterPort {
    /// Bound and listening. Rank 0 inherits the socket, which this crate's process groups can use.
    Handed(TcpListener, u16),
    /// Bound, but not listening. The system does not assign it to other programs, and rank 0 can bind it with
    /// `SO_REUSEADDR`, as PyTorch and this crate do.
    Reserved(OwnedFd, u16),
    /// Chosen by the user.
    Given(u16),
}

impl MasterPort {
    /// A listening socket on a free port of `host`.
    ///
    /// # Errors
    /// If no port can be bound.
    pub fn handed(host: &str) -> Result<Self> {
        let listener =
            TcpListener::bind((host, 0)).with_context(|| format!("cannot bind a port on {host}"))?;
        let port = listener.local_addr().context("cannot read the bound port")?.port();
        Ok(MasterPort::Handed(listener, port))
    }

    /// A free port of this machine that other programs do not get.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn reserved() -> Result<Self> {
        reserve().map(|(socket, port)| MasterPort::Reserved(socket, port)).context("cannot reserve a port")
    }

    /// Port number.
    pub fn number(&self) -> u16 {
        match self {
            MasterPort::Handed(_, port) | MasterPort::Reserved(_, port) | MasterPort::Given(port) => *port,
        }
    }

    /// The socket that rank 0 inherits, if there is one.
    pub fn inherited(&self) -> Option<RawFd> {
        match self {
            MasterPort::Handed(listener, _) => Some(listener.as_raw_fd()),
            MasterPort::Reserved(..) | MasterPort::Given(_) => None,
        }
    }
}

/// Binds a wildcard port without listening.
fn reserve() -> io::Result<(OwnedFd, u16)> {
    #[cfg(not(target_vendor = "apple"))]
    let flags = rustix::net::SocketFlags::CLOEXEC;
    // Apple's systems have no such flag.
    #[cfg(target_vendor = "apple")]
    let flags = rustix::net::SocketFlags::empty();
    let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
    fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
    let address = SocketAddr::try_from(getsockname(&socket)?)?;
    Ok((socket, address.port()))
}

/// Whether every address of `host` is a loopback address.
///
/// # Errors
/// If the name cannot be resolved.
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
