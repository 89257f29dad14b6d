//! Framing of control messages: a length of four bytes (big endian, at most [`LIMIT`]), then JSON.

use serde::{Serialize, de::DeserializeOwned};
use std::{
    io::{self, Read, Write},
    net::{Shutdown, TcpStream},
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// Maximum size of one frame in bytes, enough for the addresses of 150,000 ranks.
pub(crate) const LIMIT: usize = 4 << 20;

/// The two ends of a connection within this process, with all operations that frames and the handshake use.
pub(crate) fn pair() -> io::Result<(TcpStream, TcpStream)> {
    let (one, other) = UnixStream::pair()?;
    Ok((TcpStream::from(OwnedFd::from(one)), TcpStream::from(OwnedFd::from(other))))
}

/// Writes one frame within the stream's write timeout.
///
/// On failure the connection is closed: a later frame would be read as the rest of an incomplete one.
pub(crate) fn write_frame<T: Serialize>(mut stream: &TcpStream, message: &T) -> io::Result<()> {
    let frame = encode(message)?;
    stream.write_all(&frame).inspect_err(|_| {
        // Fails only if the connection is closed already.
        let _ = stream.shutdown(Shutdown::Both);
    })
}

/// Encodes a message with its length.
pub(crate) fn encode<T: Serialize>(message: &T) -> io::Result<Vec<u8>> {
    let body = serde_json::to_vec(message)?;
    if body.len() > LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("a message of {} bytes exceeds the limit of {LIMIT}", body.len()),
        ));
    }
    let mut frame = (body.len() as u32).to_be_bytes().to_vec();
    frame.extend(body);
    Ok(frame)
}

/// Result of waiting for a message.
#[derive(Debug)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// No complete message within the time limit.
    Nothing,
    /// The peer has closed the connection.
    Closed,
}

/// Reads frames from a stream and keeps incomplete ones between calls.
pub(crate) struct FrameReader {
    stream: Arc<TcpStream>,
    buffer: Vec<u8>,
}

impl FrameReader {
    pub fn new(stream: Arc<TcpStream>) -> Self {
        FrameReader { stream, buffer: Vec::new() }
    }

    /// The next frame, waiting at most about `wait` for all of its bytes.
    ///
    /// # Errors
    /// If the connection fails, or a frame is too large or not valid.
    pub fn next<T: DeserializeOwned>(&mut self, wait: Duration) -> io::Result<Received<T>> {
        let until = Instant::now() + wait;
        loop {
            if let Some(message) = take(&mut self.buffer)? {
                return Ok(Received::Message(message));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Received::Nothing);
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 8192];
            match (&*self.stream).read(&mut chunk) {
                Ok(0) => return Ok(Received::Closed),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) if super::secret::retry(&e) => return Ok(Received::Nothing),
                Err(e) => return Err(e),
            }
        }
    }
}

/// Removes the first message from `buffer`; `None` if it is not complete yet.
pub(crate) fn take<T: DeserializeOwned>(buffer: &mut Vec<u8>) -> io::Result<Option<T>> {
    let Some((message, used)) = decode(buffer)? else { return Ok(None) };
    buffer.drain(..used);
    Ok(Some(message))
}

/// The first message in `bytes` and its length with framing; `None` if it is not complete yet.
pub(crate) fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<Option<(T, usize)>> {
    let Some((length, rest)) = bytes.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > LIMIT {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("a frame of {length} bytes exceeds the limit of {LIMIT}"),
        ));
    }
    match rest.get(..length) {
        Some(body) => Ok(Some((serde_json::from_slice(body)?, 4 + length))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::wire::{Event, Request};
    use proptest::prelude::*;
    use std::{
        sync::atomic::{AtomicBool, Ordering},
        thread,
    };

    proptest! {
        #[test]
        fn rubbish_is_refused_and_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode::<Request>(&bytes);
            let _ = decode::<Event>(&bytes);
        }

        #[test]
        fn numbers_arrive_to_the_last_bit(seconds in prop::num::f64::NORMAL | prop::num::f64::ZERO) {
            let message = Request::Late { seconds };
            let frame = encode(&message).unwrap();
            prop_assert_eq!(decode(&frame).unwrap(), Some((message, frame.len())));
        }
    }

    #[test]
    fn a_slow_frame_does_not_block_its_reader() {
        let (here, there) = pair().unwrap();
        let mut reader = FrameReader::new(Arc::new(here));
        let message = Event::Value { id: 1, value: Some(vec![0; 300]) };
        let frame = encode(&message).unwrap();
        let given_up = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                for byte in frame {
                    (&there).write_all(&[byte]).unwrap();
                    if !given_up.load(Ordering::Relaxed) {
                        thread::sleep(Duration::from_millis(10));
                    }
                }
            });
            // Each byte comes within the time given, all of them together do not.
            let early = reader.next::<Event>(Duration::from_millis(100));
            given_up.store(true, Ordering::Relaxed);
            assert!(matches!(early, Ok(Received::Nothing)));
            let late = reader.next::<Event>(Duration::from_secs(60));
            assert!(matches!(late, Ok(Received::Message(whole)) if whole == message));
        });
    }

    #[test]
    fn a_frame_that_is_not_read_in_time_ends_the_connection() {
        let (here, there) = pair().unwrap();
        here.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
        let message = Event::Value { id: 1, value: Some(vec![255; 500_000]) };
        // Nothing is read, so the socket's buffer is full in the middle of the first frame.
        assert!(write_frame(&here, &message).is_err());
        let mut reader = FrameReader::new(Arc::new(there));
        assert!(matches!(reader.next::<Event>(Duration::from_millis(50)), Ok(Received::Closed)));
        // There is room again, but the next frame must not follow the incomplete one.
        assert!(write_frame(&here, &Event::Left { rank: 1 }).is_err());
    }

    #[test]
    fn a_huge_length_is_rejected_before_its_bytes_arrive() {
        let error = decode::<Request>(&[0xff, 0xff, 0xff, 0xff]).unwrap_err();
        assert!(error.to_string().contains("limit"));
    }
}
