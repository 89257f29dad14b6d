use super::{Server, allow_connections};
use crate::{
    Error, Secret,
    rendezvous::{
        frame::{FrameReader, Received, write_frame},
        secret::HANDSHAKE,
        wire::{Event, Hello, PeerInfo, Request},
    },
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
    fn join(address: SocketAddr, rank: usize, world: usize) -> Self {
        let mut stream = TcpStream::connect(address).unwrap();
        Secret::new("s").unwrap().dial(&mut stream, Instant::now() + HANDSHAKE).unwrap();
        let stream = Arc::new(stream);
        let joined = Rank { reader: FrameReader::new(stream.clone()), stream };
        joined.send(&Request::Hello(Hello::new(rank, None)));
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
        match self.reader.next(Some(Duration::from_secs(20))) {
            Ok(Received::Message(event)) => event,
            Ok(Received::Nothing) => panic!("no message"),
            Ok(Received::Closed) => panic!("the connection is closed"),
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn a_rank_that_does_not_read_does_not_delay_others() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let _server = Server::start(listener, 3, Secret::new("s").unwrap(), None).unwrap();
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
fn more_ranks_than_files_are_an_error() {
    // More than the kernel allows a process (fs.nr_open).
    let error = allow_connections(1 << 40).unwrap_err().to_string();
    assert!(
        error.contains("a connection to each of 1099511627776 ranks") && error.contains("ulimit"),
        "{error}"
    );
}
