//! Connections that were abandoned, closed or never answered.

use super::*;
use std::{io::Write, net::Ipv4Addr};

/// Longer than any operation in these tests takes on a loaded machine.
const PATIENT: Duration = Duration::from_secs(60);
const GROUP: u64 = 7;

fn job() -> Secret {
    Secret::new("a secret for tests").unwrap()
}

fn pool(rank: usize) -> ConnectionPool {
    ConnectionPool::start(Ipv4Addr::LOCALHOST.into(), rank, job()).unwrap()
}

/// Fails once `limit` has passed.
fn within(limit: Duration) -> impl FnMut() -> Result<()> {
    let begun = Instant::now();
    move || if begun.elapsed() < limit { Ok(()) } else { Err(Error::Aborted) }
}

/// The connection of `pool` to rank `peer`.
fn connect(pool: &ConnectionPool, peer: usize, address: SocketAddr) -> TcpStream {
    pool.connect(GROUP, peer, address, Instant::now() + PATIENT, within(PATIENT)).unwrap()
}

/// An authenticated connection from rank 1 to rank 0.
fn authenticated(listener: &ConnectionPool) -> TcpStream {
    let mut stream = TcpStream::connect(listener.address()).unwrap();
    job().dial(&mut stream, Instant::now() + PATIENT).unwrap();
    stream
}

/// Sends the greeting and waits until it is accepted.
fn greet(stream: &mut TcpStream) {
    stream.write_all(&GROUP.to_le_bytes()).unwrap();
    stream.write_all(&[1, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    let mut answer = [0];
    secret::read_by(stream, &mut answer, Instant::now() + PATIENT).unwrap();
    assert_eq!(answer, [ACCEPTED]);
}

/// Expects the byte that the other end has sent.
fn receives_a_byte(stream: &mut TcpStream) {
    stream.set_nonblocking(false).unwrap();
    let mut byte = [0];
    secret::read_by(stream, &mut byte, Instant::now() + PATIENT).unwrap();
    assert_eq!(&byte, b"x");
}

/// Connects `zero` and `one` and transfers one byte.
fn passes_a_byte(zero: &ConnectionPool, one: &ConnectionPool) {
    let (mut ours, mut theirs) = thread::scope(|scope| {
        let waiting = scope.spawn(|| connect(zero, 1, one.address()));
        // Gives `zero` time to take an existing connection first.
        thread::sleep(Duration::from_millis(200));
        let dialled = connect(one, 0, zero.address());
        (waiting.join().unwrap(), dialled)
    });
    theirs.write_all(b"x").unwrap();
    receives_a_byte(&mut ours);
}

#[test]
fn an_abandoned_connection_is_not_used() {
    let (zero, one) = (pool(0), pool(1));
    let mut abandoned = authenticated(&zero);
    greet(&mut abandoned);
    drop(abandoned);
    passes_a_byte(&zero, &one);
}

#[test]
fn an_abandoned_connection_does_not_replace_the_one_in_use() {
    let (zero, one) = (pool(0), pool(1));
    let mut late = authenticated(&zero);
    let mut theirs = connect(&one, 0, zero.address());
    greet(&mut late);
    let mut ours = connect(&zero, 1, one.address());
    theirs.write_all(b"x").unwrap();
    receives_a_byte(&mut ours);
    drop(late);
}

#[test]
fn a_closed_unused_connection_is_not_returned() {
    let (zero, one) = (pool(0), pool(1));
    let mut closed = authenticated(&zero);
    greet(&mut closed);
    closed.write_all(&[CONFIRMED]).unwrap();
    while lock(&zero.shared.arrivals).is_empty() {
        thread::yield_now();
    }
    drop(closed);
    passes_a_byte(&zero, &one);
}

#[test]
fn data_sent_before_the_end_is_received() {
    let zero = pool(0);
    let mut sent = authenticated(&zero);
    greet(&mut sent);
    sent.write_all(&[CONFIRMED, b'x']).unwrap();
    drop(sent);
    let mut ours = connect(&zero, 1, zero.address());
    receives_a_byte(&mut ours);
}

#[test]
fn dialling_ends_with_the_call() {
    // The system completes the connection, but no process answers.
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let one = pool(1);
    let begun = Instant::now();
    let limit = Duration::from_millis(100);
    let result = one.connect(GROUP, 0, silent.local_addr().unwrap(), Instant::now() + limit, within(limit));
    assert!(matches!(result, Err(Error::Aborted)), "{result:?}");
    assert!(begun.elapsed() < secret::HANDSHAKE / 2, "the dialling ran on: {:?}", begun.elapsed());
}
