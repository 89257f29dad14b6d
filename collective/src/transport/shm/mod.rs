//! Transport between processes of one machine, over shared memory.
//!
//! The memory is a sealed `memfd`. It has no name, so that nothing is left behind however the processes end;
//! it is not limited by the size of `/dev/shm` (64 MiB in a default container); and it cannot be truncated.
//! Rank 0 creates it and publishes its location. The others open it through `/proc`, which requires the same
//! user. When all have joined, the last descriptor is closed.
//!
//! ```no_run
//! # use collective::transport::shm::{ShmCommunicator, ShmSegment};
//! # use std::time::Duration;
//! # fn publish(_: &str) {}
//! # fn look_up() -> String { String::new() }
//! # fn main() -> collective::Result<()> {
//! let timeout = Duration::from_secs(30);
//! // Rank 0:
//! let segment = ShmSegment::create(2)?;
//! publish(segment.name());
//! let zero = ShmCommunicator::connect(segment, 0, timeout)?;
//! // Rank 1, in another process:
//! let segment = ShmSegment::open(&look_up(), 2)?;
//! let one = ShmCommunicator::connect(segment, 1, timeout)?;
//! # Ok(()) }
//! ```

mod processes;
pub(crate) mod segment;

pub use segment::ShmSegment;

use super::local::{Liveness, Member, region::Region};
use crate::{Communicator, DType, Error, Result, World, communicator::Call};
use processes::Processes;
use segment::Mapping;
use std::{fmt, sync::Arc, time::Duration};

/// One rank of a group of processes on one machine.
#[derive(Debug)]
pub struct ShmCommunicator {
    member: Member<Mapping>,
}

impl ShmCommunicator {
    /// Joins the group as `rank` and waits for all other ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is taken or not in the world,
    /// [`Error::Timeout`] if some rank has not joined after `timeout`.
    pub fn connect(segment: ShmSegment, rank: usize, timeout: Duration) -> Result<Self> {
        Self::connect_unless(segment, rank, timeout, || None)
    }

    /// [`ShmCommunicator::connect`] that fails soon after `failed` returns an error.
    pub(crate) fn connect_unless(
        segment: ShmSegment,
        rank: usize,
        timeout: Duration,
        failed: impl Fn() -> Option<Error> + Send + Sync + 'static,
    ) -> Result<Self> {
        let (mapping, descriptor) = segment.into_parts();
        let region = Arc::new(Region::new(mapping, descriptor.world));
        let job = Arc::new(Job(failed));
        let mut member = Member::join(region, rank, Box::new(job.clone()))?;
        let call = Call {
            seq: 0,
            operation: "join the shared memory",
            dtype: DType::U8,
            count: 0,
            reduce: None,
            root: None,
            timeout,
        };
        member.barrier(&call).map_err(|error| job.0().unwrap_or(error))?;
        // All ranks have mapped it. No other process can from here on.
        drop(descriptor);
        let processes = Processes::watch(member.region());
        member.watch(Box::new(processes));
        Ok(ShmCommunicator { member })
    }
}

/// The state of the job while its ranks join, because their processes are not known yet.
struct Job<F>(F);

impl<F> fmt::Debug for Job<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Job")
    }
}

impl<F: Fn() -> Option<Error> + Send + Sync> Liveness for Arc<Job<F>> {
    fn lost(&self, _rank: usize) -> Option<String> {
        self.0().map(|cause| cause.to_string())
    }
}

impl Communicator for ShmCommunicator {
    fn world(&self) -> World {
        self.member.world()
    }

    fn name(&self) -> &'static str {
        "shm"
    }

    forward!(member: all_reduce, broadcast, all_gather, barrier, reduce, reduce_scatter, gather, scatter, send, recv);

    fn abort(&self) {
        self.member.abort();
    }
}

#[cfg(test)]
mod tests;
