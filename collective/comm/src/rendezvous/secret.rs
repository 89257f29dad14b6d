//! The job's secret and the handshake that authenticates every connection.
//!
//! Both ends send 32 random bytes, then an HMAC-SHA256 over their role and both nonces, keyed with
//! the secret:
//!
//! ```text
//! dialler  → listener   magic (8)  nonce_d (32)
//! listener → dialler    nonce_l (32)  HMAC("listener" ‖ nonce_d ‖ nonce_l) (32)
//! dialler  → listener   HMAC("dialler" ‖ nonce_d ‖ nonce_l) (32)
//! ```
//!
//! The role prevents reflection of a proof. A peer without the secret is not read beyond these 72 bytes. Data
//! after the handshake is neither encrypted nor authenticated: use a tunnel on a network where others can
//! change packets.

use crate::{Error, Result};
use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::{Digest, Sha256};
use std::{
    io::{self, Read, Write},
    net::TcpStream,
    time::{Duration, Instant},
};

/// Environment variable that holds the job's secret.
pub const SECRET: &str = "BURN_DDP_SECRET";

const MAGIC: &[u8; 8] = b"BURNDDP\x01";
const NONCE: usize = 32;
/// Size in bytes of the dialler's first message.
pub(crate) const GREETING: usize = MAGIC.len() + NONCE;
/// Size in bytes of a proof.
pub(crate) const PROOF: usize = 32;

/// Time limit of the handshake.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(2);

/// A secret that the ranks of one job share. Its `Debug` output does not contain it.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(Vec<u8>);

debug_text! { Secret, "Secret(..)" }

impl Secret {
    /// A secret from bytes or text.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it is empty.
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self> {
        let bytes = bytes.into();
        if bytes.is_empty() {
            return Err(Error::Invalid("the job's secret (BURN_DDP_SECRET) is empty".into()));
        }
        Ok(Secret(bytes))
    }

    /// A random secret of 64 hexadecimal digits, suitable for an environment variable.
    pub fn random() -> Self {
        Secret(hex::encode(nonce()).into_bytes())
    }

    /// The secret as text, for a child process. Lossy if it is not UTF-8.
    pub fn expose(&self) -> String {
        String::from_utf8_lossy(&self.0).into_owned()
    }

    /// The default secret of a job on one machine, which is public.
    ///
    /// It rejects unrelated programs that connect to the port. Jobs are distinguished by their ids.
    pub(crate) fn derived(job: &str) -> Self {
        Secret(Sha256::digest(format!("burn-ddp job {job}")).to_vec())
    }

    /// A secret for one purpose, such as one round of a job.
    ///
    /// It reveals neither this secret nor those of other purposes.
    pub fn derive(&self, purpose: &str) -> Self {
        let mac = self.mac(&[b"derive", purpose.as_bytes()]);
        Secret(hex::encode(mac.finalize().into_bytes()).into_bytes())
    }

    /// The HMAC of `parts` in turn.
    fn mac(&self, parts: &[&[u8]]) -> Hmac<Sha256> {
        let mut mac = Hmac::new_from_slice(&self.0).expect("HMAC takes keys of every length");
        parts.iter().for_each(|part| mac.update(part));
        mac
    }

    /// The proof of `role`, from both nonces.
    fn proof(&self, role: &str, dialler: &[u8; NONCE], listener: &[u8; NONCE]) -> Hmac<Sha256> {
        self.mac(&[role.as_bytes(), dialler, listener])
    }

    /// The dialler's side of the handshake.
    pub(crate) fn dial(&self, stream: &mut TcpStream, deadline: Instant) -> Result<()> {
        let peer = peer(stream);
        let lost = |error: io::Error| Error::io(format!("authenticate to {peer}"), &error);
        let mine = nonce();
        let mut hello = MAGIC.to_vec();
        hello.extend(mine);
        write_by(stream, &hello, deadline).map_err(lost)?;
        let (mut theirs, mut proof) = ([0; 32], [0; 32]);
        read_by(stream, &mut theirs, deadline).map_err(lost)?;
        read_by(stream, &mut proof, deadline).map_err(lost)?;
        self.proof("listener", &mine, &theirs).verify_slice(&proof).map_err(|_| Error::Unauthenticated {
            peer: peer.clone(),
            reason: "its secret differs from this rank's (BURN_DDP_SECRET must be the same for all ranks)"
                .into(),
        })?;
        let proof = self.proof("dialler", &mine, &theirs).finalize().into_bytes();
        write_by(stream, &proof, deadline).map_err(lost)
    }

    /// The listener's side of the handshake.
    pub(crate) fn answer(&self, stream: &mut TcpStream, deadline: Instant) -> Result<()> {
        let peer = peer(stream);
        let refused = |reason: String| Error::Unauthenticated { peer: peer.clone(), reason };
        let lost = |error: io::Error| refused(error.to_string());
        let (mut greeting, mut proof) = ([0; GREETING], [0; PROOF]);
        let (magic, nonce) = greeting.split_at_mut(MAGIC.len());
        read_by(stream, magic, deadline).map_err(lost)?;
        if !is_greeting(magic) {
            return Err(refused("it uses another protocol".into()));
        }
        read_by(stream, nonce, deadline).map_err(lost)?;
        let (reply, challenge) = self.challenge(&greeting);
        write_by(stream, &reply, deadline).map_err(lost)?;
        read_by(stream, &mut proof, deadline).map_err(lost)?;
        if challenge.accepts(&proof) { Ok(()) } else { Err(refused("its secret differs".into())) }
    }

    /// The listener's message to a dialler, and the check of the dialler's next one.
    pub(crate) fn challenge(&self, greeting: &[u8; GREETING]) -> ([u8; NONCE + PROOF], Challenge) {
        let (mut theirs, mine) = ([0; NONCE], nonce());
        theirs.copy_from_slice(&greeting[MAGIC.len()..]);
        let mut reply = [0; NONCE + PROOF];
        reply[..NONCE].copy_from_slice(&mine);
        reply[NONCE..].copy_from_slice(&self.proof("listener", &theirs, &mine).finalize().into_bytes());
        (reply, Challenge(self.proof("dialler", &theirs, &mine)))
    }
}

/// Whether `bytes` may be the beginning of a dialler's first message.
pub(crate) fn is_greeting(bytes: &[u8]) -> bool {
    bytes.iter().zip(MAGIC).all(|(byte, wanted)| byte == wanted)
}

/// The proof that a dialler owes.
pub(crate) struct Challenge(Hmac<Sha256>);

impl Challenge {
    pub fn accepts(&self, proof: &[u8; PROOF]) -> bool {
        self.0.clone().verify_slice(proof).is_ok()
    }
}

/// Formats rank 0's address and the job's secret, for the ranks that receive them through a store or MPI.
pub(crate) fn encode_with_address(address: &str, secret: &Secret) -> String {
    format!("{address}\n{}\n", secret.expose())
}

/// The inverse of [`encode_with_address`].
pub(crate) fn decode_with_address(text: &str) -> Option<(String, Secret)> {
    let (address, secret) = text.split_once('\n')?;
    let secret = Secret::new(secret.strip_suffix('\n')?).ok()?;
    Some((address.into(), secret))
}

fn peer(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "an unknown peer".into(), |address| address.to_string())
}

fn nonce() -> [u8; 32] {
    let mut nonce = [0; 32];
    rand::rng().fill_bytes(&mut nonce);
    nonce
}

/// Time limit of a read or write after its deadline.
const LAST_TRY: Duration = Duration::from_millis(1);

fn remaining(deadline: Instant) -> io::Result<Duration> {
    match deadline.saturating_duration_since(Instant::now()) {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, "no answer in time")),
        left => Ok(left),
    }
}

/// Fills `buffer` before `deadline`, in any number of reads.
///
/// Bytes that arrived in time count, even if this thread reads them late.
pub(crate) fn read_by(stream: &mut TcpStream, mut buffer: &mut [u8], deadline: Instant) -> io::Result<()> {
    while !buffer.is_empty() {
        stream.set_read_timeout(Some(remaining(deadline).unwrap_or(LAST_TRY)))?;
        match stream.read(buffer) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => buffer = &mut buffer[n..],
            Err(e) if retry(&e) => _ = remaining(deadline)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Writes all of `bytes` before `deadline`, or without waiting after it.
pub(crate) fn write_by(stream: &mut TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.set_write_timeout(Some(remaining(deadline).unwrap_or(LAST_TRY)))?;
        match stream.write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => bytes = &bytes[n..],
            Err(e) if retry(&e) => _ = remaining(deadline)?,
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Whether an I/O error means that nothing can be done right now.
pub(crate) fn retry(error: &io::Error) -> bool {
    // Not `TimedOut`, which stands for a broken connection.
    matches!(error.kind(), io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn recorded_and_reflected_proofs_are_rejected() {
        let secret = Secret::random();
        let mut greeting = [7; GREETING];
        greeting[..MAGIC.len()].copy_from_slice(MAGIC);
        let mine = greeting[MAGIC.len()..].try_into().unwrap();
        let (reply, challenge) = secret.challenge(&greeting);
        let (theirs, reflected) = reply.split_first_chunk().unwrap();
        let proof = secret.proof("dialler", &mine, theirs).finalize().into_bytes().into();
        assert!(challenge.accepts(&proof));
        assert!(!challenge.accepts(reflected.try_into().unwrap()), "the listener's own proof");
        // Another connection has another nonce of the listener.
        let (_, later) = secret.challenge(&greeting);
        assert!(!later.accepts(&proof), "a recorded proof");
    }

    #[test]
    fn bytes_received_before_the_deadline_are_used() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut sender = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
        let (mut receiver, _) = socket.accept().unwrap();
        sender.write_all(b"early").unwrap();
        receiver.set_read_timeout(Some(HANDSHAKE)).unwrap();
        receiver.peek(&mut [0]).unwrap();
        let (mut bytes, deadline) = ([0; 5], Instant::now());
        read_by(&mut receiver, &mut bytes, deadline).unwrap();
        assert_eq!(&bytes, b"early");
        let error = read_by(&mut receiver, &mut bytes, deadline).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn secrets_are_not_displayed() {
        let secret = Secret::new("hunter2").unwrap();
        assert!(!format!("{secret:?}").contains("hunter2"));
        assert!(Secret::new("").is_err());
    }
}
