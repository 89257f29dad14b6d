//! Authenticated connections between programs outside of any group, such as the launchers of several
//! machines.

pub use super::frame::Received;

use super::{
    Secret,
    control::dial,
    frame::{FrameReader, write_frame},
    secret::HANDSHAKE,
    tune_control,
};
use crate::{Error, Result};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    net::TcpStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// Time limit of sending one message.
const SEND: Duration = Duration::from_secs(5);

/// An authenticated connection for messages of at most 4 MiB, each as JSON.
pub struct Channel {
    stream: Arc<TcpStream>,
    reader: FrameReader,
    peer: String,
}

debug_text! { Channel, "Channel({})", |channel| channel.peer }

impl Channel {
    /// Connects to `host:port`, retrying until `deadline`, and authenticates.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] at once if the secrets differ; [`Error::Io`] if no peer answers.
    pub fn dial(address: &str, secret: &Secret, deadline: Instant) -> Result<Self> {
        loop {
            match dial(address, secret, deadline) {
                Ok(stream) => return Self::new(stream),
                Err(error @ Error::Unauthenticated { .. }) => return Err(error),
                Err(error) if Instant::now() + PAUSE > deadline => return Err(error),
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    /// Authenticates an incoming connection.
    ///
    /// # Errors
    /// [`Error::Unauthenticated`] if the peer does not prove the secret within two seconds; [`Error::Io`].
    pub fn answer(mut stream: TcpStream, secret: &Secret) -> Result<Self> {
        secret.answer(&mut stream, Instant::now() + HANDSHAKE)?;
        Self::new(stream)
    }

    fn new(stream: TcpStream) -> Result<Self> {
        let failed = |e| Error::io("set up a connection", &e);
        let peer = stream.peer_addr().map_err(failed)?.to_string();
        tune_control(&stream).map_err(failed)?;
        stream.set_write_timeout(Some(SEND)).map_err(failed)?;
        let stream = Arc::new(stream);
        Ok(Channel { reader: FrameReader::new(stream.clone()), stream, peer })
    }

    /// Address of the peer.
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// A handle that only sends.
    pub fn sender(&self) -> Sender {
        Sender(self.stream.clone())
    }

    /// Sends one message.
    ///
    /// # Errors
    /// [`Error::Io`] if the connection is closed, or full for five seconds.
    pub fn send<T: Serialize>(&self, message: &T) -> Result<()> {
        write_frame(&self.stream, message).map_err(|e| Error::io(format!("send to {}", self.peer), &e))
    }

    /// The next message, waiting for it at most about `wait`.
    ///
    /// # Errors
    /// [`Error::Io`] if the connection fails or carries anything but such a message.
    pub fn receive<T: DeserializeOwned>(&mut self, wait: Duration) -> Result<Received<T>> {
        self.reader.next(wait).map_err(|e| Error::io(format!("receive from {}", self.peer), &e))
    }

    /// The underlying stream, for sending other data than messages.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }
}

/// The sending half of a [`Channel`].
#[derive(Clone, Debug)]
pub struct Sender(Arc<TcpStream>);

impl Sender {
    /// Sends one message. A failure is reported by [`Channel::receive`].
    pub fn send<T: Serialize>(&self, message: &T) {
        let _ = write_frame(&self.0, message);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair(one: &str, other: &str) -> (Result<Channel>, Result<Channel>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (one, other) = (Secret::new(one).unwrap(), Secret::new(other).unwrap());
        let dialler =
            thread::spawn(move || Channel::dial(&address, &one, Instant::now() + Duration::from_secs(5)));
        let answer = Channel::answer(listener.accept().unwrap().0, &other);
        (dialler.join().unwrap(), answer)
    }

    #[test]
    fn messages_pass_both_ways_and_the_end_is_detected() {
        let (one, other) = pair("s", "s");
        let (one, mut other) = (one.unwrap(), other.unwrap());
        one.send(&vec![1, 2, 3]).unwrap();
        let wait = Duration::from_secs(5);
        assert!(matches!(other.receive::<Vec<u8>>(wait), Ok(Received::Message(m)) if m == [1, 2, 3]));
        assert!(matches!(other.receive::<u8>(Duration::from_millis(1)), Ok(Received::Nothing)));
        drop(one);
        assert!(matches!(other.receive::<u8>(wait), Ok(Received::Closed)));
    }

    #[test]
    fn another_secret_is_rejected_on_both_sides() {
        let (one, other) = pair("s", "t");
        assert!(
            matches!(&one, Err(Error::Unauthenticated { reason, .. }) if reason.contains("BURN_DDP_SECRET")),
            "{one:?}"
        );
        assert!(matches!(other, Err(Error::Unauthenticated { .. })), "{other:?}");
    }

    #[test]
    fn secrets_of_two_rounds_differ() {
        let job = Secret::new("s").unwrap();
        assert_eq!(job.derive("round 1"), job.derive("round 1"));
        assert_ne!(job.derive("round 1"), job.derive("round 2"));
        assert_ne!(job.derive("round 1"), Secret::new("t").unwrap().derive("round 1"));
    }
}
