//! The port on which rank 0 will listen.

use anyhow::{Context, Result};
use rustix::{
    io::{FdFlags, fcntl_setfd},
    net::{AddressFamily, SocketType, bind, getsockname, socket_with, sockopt},
};
use std::{
    io,
    net::{Ipv4Addr, SocketAddr, ToSocketAddrs},
    os::fd::OwnedFd,
};

/// A port that other programs do not get until it is dropped.
///
/// It is bound, but not listening. The system does not assign it to other programs, and rank 0 can bind it with
/// `SO_REUSEADDR`, as PyTorch and this crate do.
#[derive(Debug)]
pub struct ReservedPort {
    _socket: OwnedFd,
    pub number: u16,
}

impl ReservedPort {
    /// A free port of this machine.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn new() -> Result<Self> {
        Self::bind().context("cannot reserve a port")
    }

    /// Binds a wildcard port without listening.
    fn bind() -> io::Result<Self> {
        #[cfg(not(target_vendor = "apple"))]
        let flags = rustix::net::SocketFlags::CLOEXEC;
        // Apple's systems have no such flag.
        #[cfg(target_vendor = "apple")]
        let flags = rustix::net::SocketFlags::empty();
        let socket = socket_with(AddressFamily::INET, SocketType::STREAM, flags, None)?;
        fcntl_setfd(&socket, FdFlags::CLOEXEC)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        bind(&socket, &SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)))?;
        let number = SocketAddr::try_from(getsockname(&socket)?)?.port();
        Ok(Self { _socket: socket, number })
    }
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
