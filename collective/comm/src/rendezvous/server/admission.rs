//! Checks of a joining rank: job id, protocol version and byte order, then rank, world size and transport.

use super::state::{RankSlot, ServerState};
use crate::{
    Error, Result,
    rendezvous::wire::{BYTE_ORDER, Event, Hello, Members, PROTOCOL, PeerInfo},
};

impl ServerState {
    /// Checks that the process at `peer` belongs to this job and has the same protocol version and byte order.
    ///
    /// # Errors
    /// The reason to refuse it.
    pub fn check(&mut self, hello: &Hello, peer: &str) -> Result<()> {
        let Hello { rank, protocol, byte_order, job } = hello;
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
        } else if byte_order != BYTE_ORDER {
            format!(
                "rank {rank} at {peer} is a {byte_order}-endian machine, but rank 0 {BYTE_ORDER}-endian: all ranks need one byte order"
            )
        } else {
            return Ok(());
        };
        self.refuse(wrong)
    }

    /// Refuses a rank, and fails the job unless that is complete already.
    fn refuse(&mut self, wrong: String) -> Result<()> {
        let error = Error::Invalid(wrong);
        if !self.complete {
            self.poison(error.clone());
        }
        Err(error)
    }

    /// Adds a rank with its connection, and welcomes all ranks when the last one has joined.
    ///
    /// # Errors
    /// The job's first cause, or the reason to refuse the rank.
    pub fn join(
        &mut self,
        rank: usize,
        world: usize,
        member: PeerInfo,
        address: &str,
        connection: usize,
    ) -> Result<()> {
        let peer = format!("process {} on {} ({address})", member.pid, member.host);
        if let Some(cause) = &self.cause {
            return Err(cause.clone());
        }
        let size = self.slots.len();
        let wrong = if world != size {
            Some(format!(
                "rank {rank} ({peer}) was started with world size {world}, but rank 0 with {size}: start all ranks with the same WORLD_SIZE"
            ))
        } else if rank >= world {
            Some(format!("{peer} has rank {rank}, which a world of {world} does not have"))
        } else {
            self.slots[rank].as_ref().map(|slot| {
                format!(
                    "two processes have rank {rank}: {} and {peer}; give every process its own RANK",
                    slot.peer
                )
            })
        };
        if let Some(wrong) = wrong {
            return self.refuse(wrong);
        }
        self.slots[rank] = Some(RankSlot { peer, connection: Some(connection), left: None });
        self.joined.insert(rank, member);
        if self.joined.len() == size {
            self.welcome();
        }
        Ok(())
    }

    /// Sends all addresses to all ranks, or the error that their transports differ.
    fn welcome(&mut self) {
        let joined = std::mem::take(&mut self.joined);
        let transport = |rank: usize| &joined[&rank].transport;
        if let Some(other) = (1..joined.len()).find(|other| transport(*other) != transport(0)) {
            return self.poison(Error::Invalid(format!(
                "rank {other} was started with transport {}, but rank 0 with {}: choose the same for all",
                transport(other),
                transport(0)
            )));
        }
        self.complete = true;
        self.tell_all(&Event::Welcome { members: Members::new(joined.values()) });
    }
}
