//! Transport between processes of one machine, over shared memory.
//!
//! The memory is a sealed `memfd`. It has no name, so that nothing is left behind however the processes end;
//! it is not limited by the size of `/dev/shm` (64 MiB in a default container); and it cannot be truncated.
//! Rank 0 creates it and publishes its location. The others open it through `/proc`, which requires the same
//! user. When all have opened it, the last descriptor is closed.
//!
//! ```no_run
//! # use burn_ddp_comm::transport::shm::{ShmCommunicator, ShmSegment};
//! # use std::time::Duration;
//! # fn publish(_: &str) {}
//! # fn look_up() -> String { String::new() }
//! # fn main() -> burn_ddp_comm::Result<()> {
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

pub(crate) mod segment;

pub use segment::ShmSegment;

use super::local::{LocalRank, region::Region};
use crate::{Call, Communicator, DType, Result};
use std::{sync::Arc, time::Duration};

/// One rank of a group of processes on one machine.
pub type ShmCommunicator = LocalRank;

impl ShmCommunicator {
    /// Joins the group as `rank` and waits for all other ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`](crate::Error::Invalid) if the rank is taken or not in the world,
    /// [`Error::Timeout`](crate::Error::Timeout) if some rank has not joined after `timeout`.
    pub fn connect(segment: ShmSegment, rank: usize, timeout: Duration) -> Result<Self> {
        let ShmSegment { memory, world, file, .. } = segment;
        let joined = LocalRank::join(Arc::new(Region::new(memory, world, "shm")), rank)?;
        joined.barrier(&Call::new("join the shared memory", DType::U8, 0).numbered(0, timeout))?;
        // All ranks have mapped it. No other process can from here on.
        drop(file);
        Ok(joined)
    }

    /// Joins the group as `rank`, after all ranks have opened the memory.
    pub(crate) fn join_opened(segment: ShmSegment, rank: usize) -> Result<Self> {
        LocalRank::join(Arc::new(Region::new(segment.memory, segment.world, "shm")), rank)
    }
}
