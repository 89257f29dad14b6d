//! The interface of a transport, on which [`ProcessGroup`](crate::ProcessGroup) is built.

use crate::{DType, Error, ReduceOp, Result};
use serde::{Deserialize, Serialize};
use std::{borrow::Cow, fmt, ops::Range, time::Duration};

/// A rank and the number of ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct World {
    /// This rank, from 0.
    pub rank: usize,
    /// Number of ranks.
    pub size: usize,
}

impl World {
    /// This rank's range when `length` is split evenly.
    pub fn part(self, length: usize) -> Range<usize> {
        let part = length / self.size;
        self.rank * part..(self.rank + 1) * part
    }
}

/// One collective call. All ranks must agree on everything but the time limit before data is exchanged.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    /// Number of this call within its group, from 1; 0 before the group makes it.
    pub seq: u64,
    /// Name, such as `all_reduce`.
    pub operation: Cow<'static, str>,
    /// Type of the elements.
    pub dtype: DType,
    /// Number of elements on every rank.
    pub count: usize,
    /// Reduction, for collectives that reduce.
    pub reduce: Option<ReduceOp>,
    /// Root rank, for collectives that have one.
    pub root: Option<usize>,
    /// Time limit of this rank's wait for the others; zero in another rank's call.
    #[serde(skip)]
    pub timeout: Duration,
}

impl Call {
    /// A call without reduction and root, which the group numbers.
    pub fn new(operation: &'static str, dtype: DType, count: usize) -> Self {
        let (operation, timeout) = (operation.into(), Duration::ZERO);
        Call { seq: 0, operation, dtype, count, reduce: None, root: None, timeout }
    }

    crate::setters! {
        /// Sets the reduction.
        reduce(op: ReduceOp) => reduce = Some(op);

        /// Sets the root rank.
        root(root: usize) => root = Some(root);
    }

    /// The call with this number and time limit.
    pub fn numbered(self, seq: u64, timeout: Duration) -> Self {
        Call { seq, timeout, ..self }
    }

    /// The reduction of a call that must have one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it has none.
    pub(crate) fn reduction(&self) -> Result<ReduceOp> {
        self.reduce.ok_or_else(|| Error::Invalid(format!("{self} has no reduce operation")))
    }
}

impl fmt::Display for Call {
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

/// A transport, which moves bytes between the ranks of one group.
///
/// Buffers are bytes of `call.dtype`. Every call blocks until it is done, `call.timeout` has passed or
/// [`abort`](Communicator::abort) is called. Ranks in errors are ranks of this group; the process group
/// translates them to world ranks. The default methods are built on the required ones; a transport overrides
/// those that it can do faster.
///
/// # Order of reductions
///
/// All ranks receive the same bits. The order in which an element is reduced is fixed for each transport:
///
/// - thread, shm, tcp and mpi reduce in rank order, 0, 1, … n−1, and therefore give the same bits.
/// - A group over several machines with several ranks on some of them does the same up to 32 KiB, for
///   `reduce` and `reduce_scatter`, and for means of integers. A larger `all_reduce` reduces in rank order
///   within each machine, then over the machines in the order of their first ranks. Half types are reduced
///   in f32 in both steps and rounded once. Floating-point results may therefore differ in the last bits
///   from those of another distribution of the ranks over machines.
///
/// NCCL, which is not a `Communicator`, has its own order.
///
/// # Errors
///
/// All methods fail with [`Error::Timeout`] at the deadline, [`Error::Mismatch`] if the ranks' calls differ,
/// [`Error::PeerLost`] if a rank is gone, [`Error::Aborted`] after an abort, and [`Error::Invalid`] if the
/// call and the buffers do not fit together.
pub trait Communicator: Send + Sync + fmt::Debug {
    /// Rank and world size.
    fn world(&self) -> World;
    /// Name of the transport on the command line.
    fn name(&self) -> &'static str;
    /// Reduces the buffers of all ranks in place, on every rank.
    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()>;
    /// Copies the root's buffer into the buffers of all ranks.
    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()>;
    /// Writes every rank's `mine` in rank order into `out`, of world × `mine.len()` bytes.
    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()>;
    /// Returns when every rank has called it.
    fn barrier(&self, call: &Call) -> Result<()>;
    /// Sends to rank `to`, which calls [`recv`](Communicator::recv) with an equal call.
    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()>;
    /// Receives from rank `from`.
    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()>;
    /// Fails the waiting and all later calls of this rank. Never blocks.
    fn abort(&self);

    /// Reduces the buffers of all ranks in place on the root; the other ranks keep theirs.
    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        if call.root == Some(self.world().rank) {
            return self.all_reduce(call, buffer);
        }
        self.all_reduce(call, &mut buffer.to_vec())
    }

    /// Writes the r-th of n equal parts of the reduction into that part of rank r's buffer.
    ///
    /// The rest of the buffer is unchanged. `call.count` is that of the whole buffer.
    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let mut whole = buffer.to_vec();
        self.all_reduce(call, &mut whole)?;
        let part = self.world().part(buffer.len());
        buffer[part.clone()].copy_from_slice(&whole[part]);
        Ok(())
    }

    /// Writes every rank's `mine` in rank order into the root's `out`, of world × `mine.len()` bytes.
    ///
    /// `out` is empty on the other ranks.
    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        if call.root == Some(self.world().rank) {
            return self.all_gather(call, mine, out);
        }
        self.all_gather(call, mine, &mut vec![0; mine.len() * self.world().size])
    }

    /// Writes the r-th of n equal parts of the root's `all` into `mine` of rank r.
    ///
    /// `all` has world × `mine.len()` bytes and is empty on the other ranks. `call.count` is that of one part.
    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        let world = self.world();
        let mut whole = all.to_vec();
        whole.resize(mine.len() * world.size, 0);
        let call = Call { count: call.count * world.size, ..call.clone() };
        self.broadcast(&call, &mut whole)?;
        mine.copy_from_slice(&whole[world.part(whole.len())]);
        Ok(())
    }
}

/// The transport of a group of one rank: every collective is the identity.
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
    // It has no peer.
    fn send(&self, _: &Call, _: usize, _: &[u8]) -> Result<()> {
        Ok(())
    }
    fn recv(&self, _: &Call, _: usize, _: &mut [u8]) -> Result<()> {
        Ok(())
    }
    fn abort(&self) {}
}
