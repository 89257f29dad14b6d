//! Addresses on which a job's servers listen.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

/// `host:port`, with brackets around an IPv6 address.
///
/// ```
/// # use burn_ddp_comm::address::join;
/// assert_eq!(join("node0", 29500), "node0:29500");
/// assert_eq!(join("fd00::7", 29500), "[fd00::7]:29500");
/// ```
pub fn join(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// Listens on the first of `addresses` that can be bound.
///
/// Falls back to all interfaces if none of them belongs to this machine: a service name or a translated
/// address leads to this machine without being an address of it.
///
/// # Errors
/// That of the last address, such as that the port is taken.
pub fn bind(addresses: &[SocketAddr]) -> io::Result<TcpListener> {
    let failure = match TcpListener::bind(addresses) {
        Ok(listener) => return Ok(listener),
        Err(error) => error,
    };
    let foreign = addresses.iter().find(|address| !address.ip().is_loopback());
    match foreign.filter(|_| failure.kind() == io::ErrorKind::AddrNotAvailable) {
        None => Err(failure),
        Some(foreign) => {
            let any = [IpAddr::V6(Ipv6Addr::UNSPECIFIED), IpAddr::V4(Ipv4Addr::UNSPECIFIED)];
            let any = any.map(|ip| SocketAddr::new(ip, foreign.port()));
            TcpListener::bind(&any[..]).map_err(|_| failure)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_address_is_replaced_by_all_interfaces() {
        // Reserved for documentation (RFC 5737).
        let foreign = SocketAddr::from(([192, 0, 2, 1], 0));
        let bound = bind(&[foreign]).unwrap().local_addr().unwrap();
        assert!(bound.ip().is_unspecified(), "{bound}");
    }
}
