//! How the ranks of a job find each other and stay in touch.
//!
//! Rank 0 hosts a small server ([`server`]): a key-value store with deadlines and the control plane.
//! Every rank, rank 0 included, keeps one connection to it ([`control`]). The server learns there
//! who has come, who has left and who has failed, and tells everyone; the first failure is *the*
//! cause that all ranks report. No tensor data passes here.
//!
//! Every connection first proves that both ends know the job's secret ([`secret`]).

pub(crate) mod control;
mod method;
pub(crate) mod plan;
pub(crate) mod secret;
pub(crate) mod server;
pub(crate) mod wire;

pub use method::InitMethod;
pub(crate) use plan::Plan;
pub use secret::Secret;

use rustix::net::sockopt;
use std::{io, net::TcpStream, time::Duration};

/// No delay for small messages, and let the kernel notice within about 5 s that the other
/// *machine* is gone. A stopped process still has a kernel that answers, so this never mistakes a
/// slow rank for a dead one. (A dead *process* closes its sockets, which shows at once.)
pub(crate) fn tune_control(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepintvl(stream, Duration::from_secs(1))?;
    sockopt::set_tcp_keepcnt(stream, 5)?;
    // Covers what was sent and is not acknowledged, where keep-alive does not run.
    sockopt::set_tcp_user_timeout(stream, 5_000)?;
    Ok(())
}

/// No delay for small messages. What is lost on the way shows in the control connection.
pub(crate) fn tune_data(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    Ok(())
}
