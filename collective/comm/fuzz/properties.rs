//! Properties that hold for any untrusted bytes: a module of `burn-ddp-comm` in its tests and under `cargo fuzz`.
//!
//! Each function belongs to a fuzz target and panics if its property does not hold. The tests run them on the
//! seeds, which include inputs that fuzzing has found.

use crate::{
    Error, InitMethod, Result, Secret,
    process_group::explain,
    rendezvous::{
        diagnosis::{contradiction, timeout},
        frame::{self, FrameReader, Received, pair},
        secret::{self, HANDSHAKE},
        server::{connection::Connection, state::ServerState},
        wire::{Event, Place, Request},
    },
    sync::lock,
    transport::{
        header::{self, Header},
        tcp::connection_pool,
    },
};
use serde::{Serialize, de::DeserializeOwned};
use std::{
    collections::HashMap,
    fmt::Debug,
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    sync::Arc,
    thread,
    time::Instant,
};

/// Decodes `bytes` as a frame, with their own prefix and with one that fits.
pub fn frames(bytes: &[u8]) {
    let mut framed = (bytes.len() as u32).to_be_bytes().to_vec();
    framed.extend(bytes);
    for bytes in [bytes, &framed] {
        let request = message::<Request>(bytes);
        if let Some(request) = request.clone() {
            // At most one event for each rank.
            assert!(events(3, request) <= 3);
        }
        if let Some(Request::Stall(stall)) = request {
            // These answers contradict nothing, and a timeout always has a message.
            let place = Place { last: Some(stall.call.clone()), inside: true, ..Place::default() };
            let answers = stall.members.iter().step_by(2).map(|rank| (*rank, place.clone())).collect();
            for answers in [HashMap::new(), answers] {
                assert_eq!(contradiction(0, &stall, |_| false, &answers), None);
                assert!(!timeout(&stall, &answers).to_string().is_empty());
            }
        }
        if let Some(Event::Poison { error }) = message(bytes) {
            assert!(error.to_string().ends_with(&error.cause().to_string()));
        }
    }
}

/// Number of events that the server of `world` ranks sends after a request of rank 0.
fn events(world: usize, request: Request) -> usize {
    let mut state = ServerState::new(world, String::new(), None);
    (0..world).for_each(|rank| state.add_thread(rank, rank));
    state.handle(0, request);
    state.advance_inquiry();
    state.outbox.len()
}

/// A complete frame is decoded or rejected, an incomplete one is neither, and a decoded message survives
/// encoding.
fn message<T: Serialize + DeserializeOwned + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let announced = bytes.first_chunk().map(|length| u32::from_be_bytes(*length) as usize);
    let here = bytes.len().saturating_sub(4);
    match frame::decode::<T>(bytes) {
        Ok(Some((message, used))) => {
            assert_eq!(Some(used), announced.map(|length| length + 4));
            assert!(used <= bytes.len() && used <= frame::LIMIT + 4);
            assert!(matches!(frame::decode::<T>(&bytes[..used - 1]), Ok(None)));
            let again = frame::encode(&message).expect("what was read to fit");
            let (same, length) = frame::decode::<T>(&again).expect("it to be read").expect("all of it");
            assert_eq!((&same, length), (&message, again.len()));
            Some(message)
        }
        Ok(None) => {
            assert!(announced.is_none_or(|length| length <= frame::LIMIT && here < length));
            None
        }
        Err(_) => {
            assert!(announced.is_some_and(|length| length > frame::LIMIT || here >= length));
            None
        }
    }
}

/// A stream of frames gives the same result in pieces of any size.
///
/// The first byte chooses the size.
pub fn reader(bytes: &[u8]) {
    let Some((step, bytes)) = bytes.split_first() else { return };
    let (mut expected, mut rest) = (Vec::new(), bytes);
    let refused = loop {
        match frame::decode::<Request>(rest) {
            Ok(Some((message, used))) => {
                expected.push(message);
                rest = &rest[used..];
            }
            Ok(None) => break false,
            Err(_) => break true,
        }
    };
    let (here, mut there) = pair().expect("a pair of sockets");
    // Does not wait for bytes that have not been written.
    here.set_nonblocking(true).expect("a non-blocking socket");
    let mut reader = FrameReader::new(Arc::new(here));
    let mut next = || reader.next::<Request>(HANDSHAKE);
    let mut got = Vec::new();
    let mut ended = false;
    for piece in bytes.chunks(usize::from(*step) + 1) {
        there.write_all(piece).expect("room for a piece");
        ended = loop {
            match next() {
                Ok(Received::Message(message)) => got.push(message),
                Ok(Received::Nothing) => break false,
                Ok(Received::Closed) => panic!("closed before its end"),
                Err(_) => break true,
            }
        };
        if ended {
            break;
        }
    }
    assert_eq!((got, ended), (expected, refused));
    drop(there);
    assert!(refused || matches!(next(), Ok(Received::Closed)));
}

/// A decoded header equals the encoded call.
///
/// Two different headers never decode to the same call.
pub fn header(bytes: &[u8]) {
    let Some(bytes) = bytes.first_chunk::<{ header::HEADER }>() else { return };
    let header: Header = bytemuck::pod_read_unaligned(bytes);
    let Some((call, method)) = header.decode() else { return };
    assert_eq!(Header::new(method.of(&call)), header, "{call}");
}

/// The handshake and the greeting after it; the first byte chooses the scenario.
pub fn handshake(bytes: &[u8]) {
    let Some((play, bytes)) = bytes.split_first() else { return };
    let bytes = &bytes[..bytes.len().min(4096)];
    match play % 4 {
        0 => {
            unauthenticated_peer(bytes, 72, |stream| secret().answer(stream, soon()));
            unauthenticated_connection(bytes);
        }
        1 => unauthenticated_peer(bytes, 64, |stream| secret().dial(stream, soon())),
        2 => relay(bytes),
        _ => greeting(bytes),
    }
}

fn secret() -> Secret {
    Secret::new("a secret for tests").expect("a secret")
}

fn soon() -> Instant {
    Instant::now() + 10 * HANDSHAKE
}

/// The server rejects a peer without the secret as well.
fn unauthenticated_connection(bytes: &[u8]) {
    unauthenticated_peer(bytes, 72, |stream| {
        stream.set_nonblocking(true).expect("a socket");
        let stream = mio::net::TcpStream::from_std(stream.try_clone().expect("a socket"));
        let (mut connection, mut state) = (Connection::new(stream), ServerState::new(2, String::new(), None));
        while let Ok(true) = connection.advance(0, &secret(), &mut state) {}
        connection.end(&None, &mut state);
        assert_eq!(state.refused, 1);
        Err(Error::Aborted)
    });
}

/// A peer without the secret is rejected, after at most `most` of its bytes are read.
fn unauthenticated_peer(bytes: &[u8], most: usize, meet: impl FnOnce(&mut TcpStream) -> Result<()>) {
    let (mut here, mut there) = pair().expect("a pair of sockets");
    there.write_all(bytes).expect("room for the bytes");
    there.shutdown(Shutdown::Write).expect("an open socket");
    assert!(meet(&mut here).is_err());
    let mut rest = Vec::new();
    here.read_to_end(&mut rest).expect("the rest");
    assert!(bytes.len() - rest.len() <= most);
}

/// Two peers with the secret, and a relay that changes bits between them.
///
/// The first 72 bytes of `edits` apply to the dialler's messages, the next 64 to the listener's. A peer that
/// receives changed bits rejects the other.
fn relay(edits: &[u8]) {
    let edits: [u8; 136] = std::array::from_fn(|at| edits.get(at).copied().unwrap_or(0));
    let (mut dialler, to_dialler) = pair().expect("a pair of sockets");
    let (mut listener, to_listener) = pair().expect("a pair of sockets");
    let (dialled, answered) = thread::scope(|scope| {
        let dialling = scope.spawn(move || secret().dial(&mut dialler, soon()));
        let answering = scope.spawn(move || secret().answer(&mut listener, soon()));
        // Dropping the two ends notifies a peer that still waits.
        let ((d, l), (said, replied)) = ((to_dialler, to_listener), edits.split_at(72));
        let _ = pass(&d, &l, &said[..40]) && pass(&l, &d, replied) && pass(&d, &l, &said[40..]);
        drop((d, l));
        (dialling.join().expect("no panic"), answering.join().expect("no panic"))
    });
    let untouched = |part: &[u8]| part.iter().all(|bits| *bits == 0);
    assert_eq!(dialled.is_ok(), untouched(&edits[..40]) && untouched(&edits[72..]));
    assert_eq!(answered.is_ok(), untouched(&edits));
}

/// Forwards as many bytes as there are edits; false if an end is closed.
fn pass(mut from: &TcpStream, mut to: &TcpStream, edits: &[u8]) -> bool {
    let mut bytes = vec![0; edits.len()];
    if from.read_exact(&mut bytes).is_err() {
        return false;
    }
    bytes.iter_mut().zip(edits).for_each(|(byte, edit)| *byte ^= edit);
    to.write_all(&bytes).is_ok()
}

/// An authenticated peer sends `bytes` as its greeting: group, ranks and the confirmation of the connection.
fn greeting(bytes: &[u8]) {
    const RANK: usize = 1;
    let (here, mut there) = pair().expect("a pair of sockets");
    let received = thread::scope(|scope| {
        let receiving = scope.spawn(move || {
            let pool = connection_pool::Shared::new(RANK, secret());
            pool.receive(here)?;
            Ok::<_, Error>(lock(&pool.arrivals).keys().copied().collect::<Vec<_>>())
        });
        secret().dial(&mut there, soon()).expect("the same secret");
        let _ = there.write_all(bytes);
        let _ = there.shutdown(Shutdown::Write);
        receiving.join().expect("no panic")
    });
    let number = |at: usize| bytes[at..at + 4].iter().rev().fold(0, |n, byte| n << 8 | usize::from(*byte));
    let confirmed = bytes.get(16) == Some(&connection_pool::CONFIRMED);
    let meant =
        (confirmed && number(12) == RANK).then(|| ((number(4) as u64) << 32 | number(0) as u64, number(8)));
    assert_eq!(received.ok(), meant.map(|arrival| vec![arrival]));
}

/// Flight records, separated by the byte 0x1e, survive encoding, and their diagnosis does not depend on their
/// order.
pub fn flight(bytes: &[u8]) {
    let mut records: Vec<_> =
        bytes.split(|byte| *byte == 0x1e).filter_map(|text| explain::parse(text).ok()).collect();
    for record in &records {
        let again = serde_json::to_vec_pretty(record).expect("a record to be written");
        assert_eq!(explain::parse(&again).as_ref(), Ok(record));
    }
    let told = explain::together(records.clone());
    records.reverse();
    assert_eq!(told, explain::together(records.clone()));
    if let Ok(text) = told {
        assert!(records.iter().all(|record| text.contains(&record.error)));
    }
}

/// Texts of init methods, rendezvous files and shared memory survive parsing and formatting.
pub fn text(bytes: &[u8]) {
    let Ok(text) = str::from_utf8(bytes) else { return };
    if let Ok(method) = text.parse::<InitMethod>() {
        assert_eq!(method.to_string(), text);
    }
    if let Some((address, secret)) = secret::decode_with_address(text) {
        assert_eq!(secret::encode_with_address(&address, &secret), text);
    }
    #[cfg(target_os = "linux")]
    if let Some((path, [high, low])) = crate::transport::shm::parse(text) {
        assert!(text.eq_ignore_ascii_case(&format!("{path}#{high:016x}{low:016x}")));
        let mut parts = path.split(|letter: char| letter.is_ascii_digit()).filter(|part| !part.is_empty());
        assert_eq!((parts.next(), parts.next(), parts.next()), (Some("/proc/"), Some("/fd/"), None));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs a target's property on its seeds.
    fn holds(target: &str, property: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds").join(target);
        let seeds: Vec<_> = folder.read_dir().unwrap().map(|seed| seed.unwrap().path()).collect();
        assert!(!seeds.is_empty(), "no seeds in {}", folder.display());
        for seed in seeds {
            // Shown if the test fails.
            println!("{}", seed.display());
            property(&std::fs::read(seed).unwrap());
        }
    }

    #[test]
    fn seeds_of_messages_are_messages() {
        use super::{Event, Request, frame::decode};
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/seeds/frames");
        for seed in folder.read_dir().unwrap().map(|seed| seed.unwrap()) {
            let bytes = std::fs::read(seed.path()).unwrap();
            // With its own prefix, or with one that fits.
            let framed = [&(bytes.len() as u32).to_be_bytes()[..], &bytes].concat();
            let read = |bytes: &[u8]| {
                matches!(decode::<Request>(bytes), Ok(Some(_)))
                    || matches!(decode::<Event>(bytes), Ok(Some(_)))
            };
            let broken = ["empty_frame", "huge", "part"].contains(&&*seed.file_name().to_string_lossy());
            assert_eq!(read(&bytes) || read(&framed), !broken, "{}", seed.path().display());
        }
    }

    macro_rules! targets {
        ($($name:ident),*) => { $(
            #[test]
            fn $name() {
                holds(stringify!($name), super::$name);
            }
        )* };
    }
    targets!(frames, reader, header, handshake, flight, text);
}
