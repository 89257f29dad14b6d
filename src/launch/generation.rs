//! Generations of a job's process group, and the connection over which launcher and rank speak about them.
//!
//! With `--recover live`, the launcher replaces a rank that has failed, and the other ranks keep their processes. All
//! meet in a new group, the next generation. If a machine is lost, that is a group of the other machines' ranks. Every
//! rank has inherited one end of a socket pair:
//!
//! ```text
//! rank → launcher   Ready              it can meet in another generation
//! rank → launcher   MustRestart        it cannot, because its state is divided over the ranks
//! rank → launcher   Lost(generation)   its group has failed, and it waits for the next generation
//! launcher → rank   Place              its rank in the newest generation
//! ```

use anyhow::{Context, Result};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{
    env,
    io::{BufRead, BufReader, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::{net::UnixStream, process::CommandExt},
    },
    process::Command,
};

/// Environment variable with the file descriptor of a rank's end of the connection.
const SOCKET: &str = "BURN_DDP_RECOVERY_FD";

/// A generation of the process group in one round.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Generation {
    /// 0 at the start of the round.
    pub number: usize,
    /// Where rank 0 listens.
    pub master_port: u16,
}

/// A process's place in a generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub generation: Generation,
    pub rank: usize,
    pub world_size: usize,
}

/// Message from a rank to its launcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromRank {
    Ready,
    MustRestart,
    Lost(usize),
}

/// One end of the connection: a line of JSON for each message.
#[derive(Debug)]
pub struct LineSocket {
    stream: BufReader<UnixStream>,
    /// The part of the next line that has arrived.
    line: Vec<u8>,
}

impl LineSocket {
    fn new(stream: UnixStream) -> Result<Self> {
        stream.set_nonblocking(true).context("cannot use the connection between launcher and rank")?;
        Ok(Self { stream: BufReader::new(stream), line: Vec::new() })
    }

    /// Creates the launcher's end of a new connection, whose other end `command` inherits when it starts, and sends its
    /// `place`.
    ///
    /// The other end is returned as well; the caller drops it after the start.
    ///
    /// # Errors
    /// If the system has no socket pair left.
    pub fn pass_to(command: &mut Command, place: Place) -> Result<(Self, OwnedFd)> {
        let (own, others) = UnixStream::pair().context("cannot connect launcher and rank")?;
        let others = OwnedFd::from(others);
        let number = others.as_raw_fd();
        command.env(SOCKET, number.to_string());
        let inherit = move || {
            // SAFETY: the descriptor is open in the child, a copy of the launcher at this point.
            let others = unsafe { rustix::fd::BorrowedFd::borrow_raw(number) };
            Ok(fcntl_setfd(others, FdFlags::empty())?)
        };
        // SAFETY: between fork and exec only an async-signal-safe call is made.
        unsafe { command.pre_exec(inherit) };
        let mut socket = Self::new(own)?;
        socket.send(&place);
        Ok((socket, others))
    }

    /// Opens a rank's end, and reports that the rank can meet in another generation than its first one; `None` if the
    /// launcher does not replace ranks. It is called once in a process.
    ///
    /// # Errors
    /// If the variable of the launcher is not valid.
    pub fn inherited() -> Result<Option<Self>> {
        let Ok(socket) = env::var(SOCKET) else { return Ok(None) };
        let raw = socket.parse().with_context(|| format!("{SOCKET}={socket} is not a descriptor"))?;
        // SAFETY: the launcher has opened the descriptor for this process, which opens the connection once.
        let stream = UnixStream::from(unsafe { OwnedFd::from_raw_fd(raw) });
        fcntl_setfd(&stream, FdFlags::CLOEXEC)
            .with_context(|| format!("{SOCKET}={socket}: the launcher's connection is not open"))?;
        let mut socket = Self::new(stream)?;
        socket.send(&FromRank::Ready);
        Ok(Some(socket))
    }

    /// Sends a message. A peer that has ended is not an error.
    pub fn send(&mut self, message: &impl Serialize) {
        let line = serde_json::to_string(message).unwrap_or_default() + "\n";
        let _ = self.stream.get_mut().write_all(line.as_bytes());
    }

    /// The next message, if one has arrived. Lines that are not messages are skipped.
    pub fn receive<T: DeserializeOwned>(&mut self) -> Option<T> {
        while self.stream.read_until(b'\n', &mut self.line).is_ok_and(|read| read > 0) {
            let message = serde_json::from_slice(&self.line);
            self.line.clear();
            if let Ok(message) = message {
                return Some(message);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_arrive_in_order_and_noise_is_skipped() -> Result<()> {
        let (own, mut others) = UnixStream::pair()?;
        let mut socket = LineSocket::new(own)?;
        assert_eq!(socket.receive::<FromRank>(), None);
        others.write_all(b"\"Ready\"\nnoise\n{\"Lost\":")?;
        assert_eq!(socket.receive(), Some(FromRank::Ready));
        assert_eq!(socket.receive::<FromRank>(), None);
        others.write_all(b"3}\n")?;
        assert_eq!(socket.receive(), Some(FromRank::Lost(3)));
        drop(others);
        assert_eq!(socket.receive::<FromRank>(), None);
        socket.send(&FromRank::Ready);
        Ok(())
    }
}
