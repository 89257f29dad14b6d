use super::{Server, allow_connections};
use crate::{
    Error, Secret,
    rendezvous::{
        frame::{FrameReader, Received, write_frame},
        secret::HANDSHAKE,
        wire::{BYTE_ORDER, Event, Hello, PROTOCOL, PeerInfo, Request},
    },
    sync::lock,
};
use std::{
    net::{SocketAddr, TcpListener, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// A rank that only exchanges messages with the server.
struct Rank {
    stream: Arc<TcpStream>,
    reader: FrameReader,
}

impl Rank {
    fn connect(address: SocketAddr, hello: Hello) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        Secret::new("s").unwrap().dial(&mut stream, Instant::now() + HANDSHAKE).unwrap();
        let stream = Arc::new(stream);
        let connected = Rank { reader: FrameReader::new(stream.clone()), stream };
        connected.send(&Request::Hello(hello));
        connected
    }

    fn join(address: SocketAddr, rank: usize, world: usize) -> Self {
        let joined = Self::connect(address, Hello::new(rank, None));
        let member = PeerInfo {
            data: address,
            host: "node".into(),
            machine: "machine".into(),
            pid: 1,
            transport: "tcp".into(),
        };
        joined.send(&Request::Join { rank, world, member });
        joined
    }

    fn send(&self, request: &Request) {
        write_frame(&self.stream, request).unwrap();
    }

    fn receive(&mut self) -> Event {
        match self.reader.next(Duration::from_secs(20)) {
            Ok(Received::Message(event)) => event,
            Ok(Received::Nothing) => panic!("no message"),
            Ok(Received::Closed) => panic!("the connection is closed"),
            Err(error) => panic!("{error}"),
        }
    }
}

fn serve(world: usize) -> (Server, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    (Server::start(listener, world, Secret::new("s").unwrap(), None).unwrap(), address)
}

#[test]
fn another_version_or_byte_order_is_rejected_with_both_values() {
    let other = if BYTE_ORDER == "Little" { "Big" } else { "Little" };
    let versions = [format!("version {} ", PROTOCOL + 1), format!("version {PROTOCOL}:")];
    let orders = ["Big-endian", "Little-endian"].map(String::from);
    for (hello, words) in [
        (Hello { protocol: PROTOCOL + 1, ..Hello::new(1, None) }, versions),
        (Hello { byte_order: other.into(), ..Hello::new(1, None) }, orders),
    ] {
        let (server, address) = serve(2);
        let Event::Poison { error } = Rank::connect(address, hello).receive() else { panic!("no refusal") };
        for word in ["rank 1 at 127.0.0.1:"].into_iter().chain(words.iter().map(String::as_str)) {
            assert!(error.to_string().contains(word), "should name `{word}`: {error}");
        }
        // The other ranks fail with the same error.
        assert_eq!(lock(&server.state).cause, Some(error));
        server.close(Error::Aborted);
    }
}

#[test]
fn a_rank_that_does_not_read_does_not_delay_others() {
    let (_server, address) = serve(3);
    let mut ranks = [0, 1, 2].map(|rank| Rank::join(address, rank, 3));
    for rank in &mut ranks {
        assert!(matches!(rank.receive(), Event::Welcome { .. }));
    }
    let get = |key: &str| Request::Get { id: 7, key: key.into(), wait: true };
    ranks[1].send(&Request::Set { key: "large".into(), value: vec![255; 100_000] });
    // More than the buffers of the connection hold.
    (0..60).for_each(|_| ranks[1].send(&get("large")));
    ranks[2].send(&Request::Set { key: "small".into(), value: vec![3] });
    for rank in [0, 2] {
        ranks[rank].send(&get("small"));
        assert_eq!(ranks[rank].receive(), Event::Value { id: 7, value: Some(vec![3]) });
    }
    // The others learn of it within seconds, also rank 0, which is notified last.
    for rank in [2, 0] {
        let Event::Poison { error: Error::PeerLost { rank, reason } } = ranks[rank].receive() else {
            panic!("another message")
        };
        assert!(rank == 1 && reason.contains("it has not read its messages for 1."), "{rank}: {reason}");
    }
}

#[test]
fn an_error_of_a_device_names_the_rank_to_the_others() {
    let (_server, address) = serve(2);
    let mut ranks = [0, 1].map(|rank| Rank::join(address, rank, 2));
    for rank in &mut ranks {
        assert!(matches!(rank.receive(), Event::Welcome { .. }));
    }
    let error = Error::Device { device: "cuda:1".into(), reason: "lost".into() };
    ranks[1].send(&Request::Report { error: error.clone() });
    let [other, own] = &mut ranks;
    assert_eq!(own.receive(), Event::Poison { error });
    let error = Error::Remote { rank: 1, reason: "device cuda:1: lost".into() };
    assert_eq!(other.receive(), Event::Poison { error });
}

#[test]
fn more_ranks_than_files_are_an_error() {
    // More than the kernel allows a process (fs.nr_open).
    let error = allow_connections(1 << 40).unwrap_err().to_string();
    assert!(
        error.contains("a connection to each of 1099511627776 ranks") && error.contains("ulimit"),
        "{error}"
    );
}
