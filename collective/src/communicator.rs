//! What a transport implements: the smallest object-safe set of operations from which a
//! [`ProcessGroup`](crate::ProcessGroup) makes all others.

use crate::{DType, Error, ReduceOp, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, ops::Range, time::Duration};

/// Who I am among how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// Number of this rank, from 0.
    pub rank: usize,
    /// How many ranks there are.
    pub size: usize,
}

impl World {
    /// This rank's of `size` equal parts of `length`.
    pub fn part(self, length: usize) -> Range<usize> {
        let part = length / self.size;
        self.rank * part..(self.rank + 1) * part
    }
}

/// What every rank must agree on before a byte is moved: one collective call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of this call within its group, from 1.
    pub seq: u64,
    /// Its name, such as `all_reduce`.
    pub operation: &'static str,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements this call is about on every rank.
    pub count: usize,
    /// How values become one, where they do.
    pub reduce: Option<ReduceOp>,
    /// The rank that gives or gets, where there is one.
    pub root: Option<usize>,
    /// How long this rank waits for the others.
    pub timeout: Duration,
}

impl Call {
    /// What the other ranks' calls are compared with.
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            seq: self.seq,
            operation: self.operation.into(),
            dtype: self.dtype,
            count: self.count as u64,
            reduce: self.reduce,
            root: self.root.map(|root| root as u32),
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fingerprint().fmt(f)
    }
}

/// A [`Call`] as it travels: what must be equal on all ranks, which the deadline need not be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// As [`Call::seq`].
    pub seq: u64,
    /// As [`Call::operation`].
    pub operation: String,
    /// As [`Call::dtype`].
    pub dtype: DType,
    /// As [`Call::count`].
    pub count: u64,
    /// As [`Call::reduce`].
    pub reduce: Option<ReduceOp>,
    /// As [`Call::root`].
    pub root: Option<u32>,
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} ({} x {:?}", self.operation, self.seq, self.count, self.dtype)?;
        if let Some(reduce) = self.reduce {
            write!(f, ", {reduce:?}")?;
        }
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

/// One way of moving bytes between the ranks of one group.
///
/// Buffers are bytes of `call.dtype`. Every call blocks until done, or until `call.timeout` has
/// passed, or until [`abort`](Communicator::abort). The reduction order is rank 0, 1, … n−1 for
/// every element, whatever the transport, so that all transports give the same bits. Ranks in
/// errors are ranks of this group; the process group translates and completes them.
///
/// What has a default works through the first four; a transport overrides what it does better.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// This rank, and how many there are.
    fn world(&self) -> World;
    /// Name as `--transport` knows it.
    fn name(&self) -> &'static str;
    /// In place: every rank ends with the reduction over all ranks.
    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()>;
    /// In place: every rank ends with the root's buffer.
    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()>;
    /// `out` (world × `mine.len()` bytes) receives every rank's bytes in rank order.
    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()>;
    /// Returns when every rank has called it.
    fn barrier(&self, call: &Call) -> Result<()>;
    /// Wakes every waiting call on this rank with an error, and lets later ones fail. Never blocks.
    fn abort(&self);

    /// In place: the root ends with the reduction over all ranks, the others with what they had.
    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if call.root == Some(self.world().rank) {
            return self.all_reduce(call, buffer);
        }
        self.all_reduce(call, &mut buffer.to_vec())
    }

    /// In place: rank r ends with the r-th of n equal parts of the reduction, in that part of its
    /// buffer; the rest stays. `call.count` is of the whole buffer.
    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let mut whole = buffer.to_vec();
        self.all_reduce(call, &mut whole)?;
        let part = self.world().part(buffer.len());
        buffer[part.clone()].copy_from_slice(&whole[part]);
        Ok(())
    }

    /// `out` of the root (world × `mine.len()` bytes, empty on the others) receives every rank's
    /// bytes in rank order.
    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        if call.root == Some(self.world().rank) {
            return self.all_gather(call, mine, out);
        }
        self.all_gather(call, mine, &mut vec![0; mine.len() * self.world().size])
    }

    /// Every rank's `mine` receives its part of the root's `all` (world × `mine.len()` bytes, empty
    /// on the others). `call.count` is of one part.
    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let world = self.world();
        let mut whole = all.to_vec();
        whole.resize(mine.len() * world.size, 0);
        let call = Call { count: call.count * world.size, ..call.clone() };
        self.broadcast(&call, &mut whole)?;
        mine.copy_from_slice(&whole[world.part(whole.len())]);
        Ok(())
    }

    /// Sends to rank `to`, which calls [`recv`](Communicator::recv) with an equal call.
    fn send(&self, call: &Call, to: usize, _data: &[u8]) -> Result<()> {
        Err(Error::Invalid(format!("transport {} cannot send to rank {to}: {call}", self.name())))
    }

    /// Receives from rank `from`.
    fn recv(&self, call: &Call, from: usize, _data: &mut [u8]) -> Result<()> {
        Err(Error::Invalid(format!("transport {} cannot receive from rank {from}: {call}", self.name())))
    }
}

/// A world of one: every collective is the identity.
#[derive(Clone, Copy, Debug)]
pub struct Solo;

impl Communicator for Solo {
    fn world(&self) -> World {
        World { rank: 0, size: 1 }
    }
    fn name(&self) -> &'static str {
        "solo"
    }
    fn all_reduce(&self, _: &Call, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn broadcast(&self, _: &Call, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn all_gather(&self, _: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        out.copy_from_slice(mine);
        Ok(())
    }
    fn barrier(&self, _: &Call) -> Result<()> {
        Ok(())
    }
    fn abort(&self) {}
}
