//! Admission of ranks: handshake, then job id, protocol version and byte order, then rank.

use super::{RankSlot, ServerState, Shared, WRITE_TIMEOUT};
use crate::{
    Error, Result,
    rendezvous::{
        frame::{FrameReader, Next, write_frame},
        secret::HANDSHAKE,
        tune_control,
        wire::{ByteOrder, Event, Hello, PROTOCOL, PeerInfo, Request},
    },
};
use std::{
    net::TcpStream,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

impl Shared {
    /// Runs the handshake and reads the first messages within the handshake's deadline.
    pub(super) fn admit(&self, mut stream: TcpStream) -> Option<(usize, FrameReader)> {
        let deadline = Instant::now() + HANDSHAKE;
        if self.secret.answer(&mut stream, deadline).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        tune_control(&stream).ok()?;
        stream.set_write_timeout(Some(WRITE_TIMEOUT)).ok()?;
        let stream = Arc::new(stream);
        let mut reader = FrameReader::new(stream.clone());
        let mut next = || loop {
            let left = deadline.checked_duration_since(Instant::now())?;
            match reader.next(Some(left.max(Duration::from_millis(1)))).ok()? {
                Next::Frame(request) => return Some(request),
                Next::Idle => {}
                Next::Closed => return None,
            }
        };
        let Request::Hello(hello) = next()? else { return None };
        let joined = match self.check(&hello, &stream) {
            Err(error) => Err(error),
            Ok(()) => {
                let Request::Join { rank, world, member } = next()? else { return None };
                self.slot(rank, world, member, &stream).map(|()| rank)
            }
        };
        match joined {
            Ok(rank) => Some((rank, reader)),
            Err(error) => {
                let _ = write_frame(&stream, &Event::Poison { error });
                // Closing with unread bytes could take the answer away: let the rank close first.
                while matches!(reader.next::<Request>(Some(HANDSHAKE)), Ok(Next::Frame(_))) {}
                None
            }
        }
    }

    /// Checks that a process belongs to this job and has the same protocol version and byte order.
    fn check(&self, hello: &Hello, stream: &TcpStream) -> Result<()> {
        let Hello { rank, protocol, byte_order, job } = hello;
        let peer = peer(stream);
        if *job != self.job {
            let name = |job: &Option<String>| {
                job.as_ref().map_or_else(|| "a job without an id".into(), |job| format!("job {job:?}"))
            };
            // A misdirected process must not fail this job.
            return Err(Error::Invalid(format!(
                "rank {rank} at {peer} is of {}, but the ranks that meet at {} are of {}; give this job another address (MASTER_PORT), or all of its ranks the same job id",
                name(job),
                self.address,
                name(&self.job)
            )));
        }
        let wrong = if *protocol != PROTOCOL {
            format!(
                "rank {rank} at {peer} uses version {protocol} of the rendezvous protocol, but rank 0 uses version {PROTOCOL}: start all ranks with the same build of the program"
            )
        } else if *byte_order != ByteOrder::NATIVE {
            format!(
                "rank {rank} at {peer} is a {byte_order:?}-endian machine, but rank 0 {:?}-endian: all ranks need one byte order",
                ByteOrder::NATIVE
            )
        } else {
            return Ok(());
        };
        self.refuse(&mut self.lock(), wrong)
    }

    /// Refuses a rank, and fails the job unless that is complete already.
    fn refuse(&self, state: &mut ServerState, wrong: String) -> Result<()> {
        let error = Error::Invalid(wrong);
        if !state.complete {
            state.poison(error.clone());
        }
        Err(error)
    }

    fn slot(&self, rank: usize, world: usize, member: PeerInfo, stream: &Arc<TcpStream>) -> Result<()> {
        let peer = format!("process {} on {} ({})", member.pid, member.host, peer(stream));
        let mut state = self.lock();
        if let Some(cause) = &state.cause {
            return Err(cause.clone());
        }
        let wrong = if world != self.world {
            Some(format!(
                "rank {rank} ({peer}) was started with world size {world}, but rank 0 with {}: start all ranks with the same WORLD_SIZE",
                self.world
            ))
        } else if rank >= world {
            Some(format!("{peer} has rank {rank}, which a world of {world} does not have"))
        } else {
            state.slots[rank].as_ref().map(|slot| {
                format!(
                    "two processes have rank {rank}: {} and {peer}; give every process its own RANK",
                    slot.peer
                )
            })
        };
        if let Some(wrong) = wrong {
            return self.refuse(&mut state, wrong);
        }
        let stream = stream.clone();
        state.slots[rank] = Some(RankSlot { member, peer, stream, left: None, gone: false });
        if state.slots.iter().all(Option::is_some) {
            state.complete = true;
            let members = state.slots.iter().flatten().map(|slot| slot.member.clone()).collect();
            state.tell_all(&Event::Welcome { members });
        }
        Ok(())
    }
}

fn peer(stream: &TcpStream) -> String {
    stream.peer_addr().map_or_else(|_| "?".into(), |address| address.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Secret, rendezvous::server::Server};
    use std::net::{SocketAddr, TcpListener};

    fn serving(job: Option<String>) -> (Server, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (Server::start(listener, 2, Secret::new("s").unwrap(), job).unwrap(), address)
    }

    /// The server's answer to `hello` from a process with the secret.
    fn answer(address: SocketAddr, hello: Hello) -> Option<Event> {
        let mut stream = TcpStream::connect(address).unwrap();
        Secret::new("s").unwrap().dial(&mut stream, Instant::now() + HANDSHAKE).unwrap();
        write_frame(&stream, &Request::Hello(hello)).unwrap();
        match FrameReader::new(Arc::new(stream)).next(Some(Duration::from_millis(500))).unwrap() {
            Next::Frame(event) => Some(event),
            Next::Idle | Next::Closed => None,
        }
    }

    #[test]
    fn another_version_or_byte_order_is_rejected_with_both_values() {
        let other = if ByteOrder::NATIVE == ByteOrder::Little { ByteOrder::Big } else { ByteOrder::Little };
        for (hello, words) in [
            (
                Hello { protocol: PROTOCOL + 1, ..Hello::new(1, None) },
                [
                    "rank 1 at 127.0.0.1:".into(),
                    format!("version {} ", PROTOCOL + 1),
                    format!("version {PROTOCOL}:"),
                ],
            ),
            (
                Hello { byte_order: other, ..Hello::new(1, None) },
                ["rank 1 at 127.0.0.1:".into(), "Big-endian".into(), "Little-endian".into()],
            ),
        ] {
            let (server, address) = serving(None);
            let Some(Event::Poison { error }) = answer(address, hello) else { panic!("no answer") };
            for word in words {
                assert!(error.to_string().contains(&word), "should name `{word}`: {error}");
            }
            // The other ranks fail with the same error.
            assert_eq!(server.shared.lock().cause, Some(error));
            server.close();
        }
    }

    #[test]
    fn another_job_is_rejected() {
        let (server, address) = serving(Some("blue".into()));
        assert_eq!(answer(address, Hello::new(1, Some("blue".into()))), None, "it may join");
        let red = answer(address, Hello::new(1, Some("red".into())));
        assert!(matches!(red, Some(Event::Poison { error: Error::Invalid(_) })), "{red:?}");
        assert_eq!(server.shared.lock().cause, None);
        assert!(server.absent().starts_with("ranks 0, 1 (0 of 2 came)"), "{}", server.absent());
        server.close();
    }
}
