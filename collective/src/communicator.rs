//! What a transport implements: the smallest object-safe set of operations from which a
//! [`ProcessGroup`](crate::ProcessGroup) makes all others.

use crate::{DType, ReduceOp, Result};
use serde::{Deserialize, Serialize};
use std::{fmt, time::Duration};

/// Who I am among how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    pub rank: usize,
    pub size: usize,
}

/// What every rank must agree on before a byte is moved: one collective call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Number of this call within its group, from 1.
    pub seq: u64,
    pub operation: &'static str,
    pub dtype: DType,
    /// Elements this call is about on every rank.
    pub count: usize,
    pub reduce: Option<ReduceOp>,
    pub root: Option<usize>,
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
    pub seq: u64,
    pub operation: String,
    pub dtype: DType,
    pub count: u64,
    pub reduce: Option<ReduceOp>,
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
/// Buffers are bytes of `call.dtype`, aligned to it. Every call blocks until done or until
/// `call.timeout` has passed. The reduction order is rank 0, 1, … n−1 for every element, whatever
/// the transport, so that all transports give the same bits.
pub trait Communicator: Send + Sync + fmt::Debug {
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
    /// Wakes every waiting call on this rank with an error. Never blocks.
    fn abort(&self);
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
