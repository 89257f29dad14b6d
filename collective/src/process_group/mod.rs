//! What a user holds: a group of ranks and the collectives on it.

mod init;
mod log;
mod object;
mod options;

pub use options::Options;

use crate::{
    DType, Element, Error, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    rendezvous::{
        control::{Control, Watched},
        wire::{Place, Stall},
    },
};
use log::Log;
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError, Weak},
    time::{Duration, Instant},
};

/// A group of ranks that act together. Cloning is cheap and gives the same group.
///
/// Every rank must call the same collectives in the same order. If one does not, all get an error
/// that shows both sides; if one fails or is gone, all get that first cause, and so does every
/// later call. The last clone says goodbye when it is dropped.
#[derive(Clone)]
pub struct ProcessGroup(Arc<Inner>);

struct Inner {
    group: u64,
    /// World rank of every rank of the group.
    members: Vec<usize>,
    world: World,
    /// Before `comm`, so that the goodbye goes out before the data connections close.
    control: Option<Arc<Control>>,
    comm: Box<dyn Communicator>,
    /// Number of the last call. Held during a call: one at a time.
    turn: Mutex<u64>,
    log: Log,
    /// Why no call can be made any more, if that is not known to `control`.
    ended: Mutex<Option<Error>>,
    timeout: Duration,
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup(rank {} of {}, {})", self.rank(), self.world_size(), self.transport())
    }
}

impl ProcessGroup {
    fn new(inner: Inner) -> Self {
        let inner = Arc::new(inner);
        if let Some(control) = &inner.control {
            let watched: Weak<Inner> = Arc::downgrade(&inner);
            control.watch(watched);
        }
        ProcessGroup(inner)
    }

    /// This rank's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.0.world.rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.0.world.size
    }

    /// Name of the transport: `solo` or what `--transport` calls it.
    pub fn transport(&self) -> &'static str {
        self.0.comm.name()
    }

    /// In place: every rank ends with the reduction of all ranks' buffers, element by element in
    /// rank order. All ranks get the same bits.
    pub fn all_reduce<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let spec = Spec::new::<T>("all_reduce", buffer.len()).reduce(op);
        self.0.run(spec, |comm, call| comm.all_reduce(call, bytemuck::cast_slice_mut(buffer)))
    }

    /// In place: every rank ends with the buffer of rank `root`.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let spec = Spec::new::<T>("broadcast", buffer.len()).root(self.0.check_root(root)?);
        self.0.run(spec, |comm, call| comm.broadcast(call, bytemuck::cast_slice_mut(buffer)))
    }

    /// Every rank's `mine`, in rank order. All must be of the same length; if they are not, use
    /// [`ProcessGroup::all_gather_v`].
    pub fn all_gather<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        let all = self.gather_flat(mine)?;
        if mine.is_empty() {
            return Ok(vec![Vec::new(); self.world_size()]);
        }
        Ok(all.chunks(mine.len()).map(<[T]>::to_vec).collect())
    }

    /// Every rank's `mine`, in rank order, of any lengths.
    pub fn all_gather_v<T: Element>(&self, mine: &[T]) -> Result<Vec<Vec<T>>> {
        let lengths: Vec<usize> =
            self.gather_flat(&[mine.len() as i64])?.into_iter().map(|length| length as usize).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        if longest == 0 {
            return Ok(vec![Vec::new(); self.world_size()]);
        }
        let mut padded = mine.to_vec();
        padded.resize(longest, T::zeroed());
        let all = self.gather_flat(&padded)?;
        Ok(all.chunks(longest).zip(lengths).map(|(slot, length)| slot[..length].to_vec()).collect())
    }

    fn gather_flat<T: Element>(&self, mine: &[T]) -> Result<Vec<T>> {
        let mut all = vec![T::zeroed(); mine.len() * self.world_size()];
        let spec = Spec::new::<T>("all_gather", mine.len());
        let out = bytemuck::cast_slice_mut(&mut all);
        self.0.run(spec, |comm, call| comm.all_gather(call, bytemuck::cast_slice(mine), out))?;
        Ok(all)
    }

    /// Returns when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        self.0.run(Spec::new::<u8>("barrier", 0), |comm, call| comm.barrier(call))
    }

    /// Leaves in peace; later calls, also on clones, fail. Dropping the last clone does the same.
    pub fn destroy(self) {
        self.0.end(Error::Invalid("the process group was destroyed".into()));
        if let Some(control) = &self.0.control {
            control.goodbye();
        }
    }

    /// Tells all ranks that this one cannot go on, and why: their collectives fail with `reason`.
    pub fn abort(&self, reason: impl Into<String>) {
        let rank = self.0.members[self.0.world.rank];
        let error = Error::PeerLost { rank, reason: reason.into() };
        let cause = self.0.control.as_ref().map_or(error.clone(), |control| control.fail(error));
        self.0.end(cause);
        self.0.comm.abort();
    }
}

/// What is known of a call before it gets its number.
struct Spec {
    operation: &'static str,
    dtype: DType,
    count: usize,
    reduce: Option<ReduceOp>,
    root: Option<usize>,
}

impl Spec {
    fn new<T: Element>(operation: &'static str, count: usize) -> Self {
        Spec { operation, dtype: T::DTYPE, count, reduce: None, root: None }
    }

    fn reduce(mut self, op: ReduceOp) -> Self {
        self.reduce = Some(op);
        self
    }

    fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }
}

impl Inner {
    fn new(
        group: u64,
        members: Vec<usize>,
        world: World,
        comm: Box<dyn Communicator>,
        control: Option<Arc<Control>>,
        timeout: Duration,
    ) -> Self {
        let (turn, log, ended) = (Mutex::new(0), Log::default(), Mutex::new(None));
        Inner { group, members, world, control, comm, turn, log, ended, timeout }
    }

    fn check_root(&self, root: usize) -> Result<usize> {
        if root < self.world.size {
            return Ok(root);
        }
        Err(Error::Invalid(format!("root {root} does not exist in a group of {} ranks", self.world.size)))
    }

    fn end(&self, cause: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
    }

    fn cause(&self) -> Option<Error> {
        let known = self.control.as_ref().and_then(|control| control.cause());
        known.or_else(|| self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    /// Makes one call: gives it its number, records it, and turns a failure into the first cause.
    fn run<R>(&self, spec: Spec, act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>) -> Result<R> {
        let mut turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = self.cause() {
            return Err(Error::Poisoned(Box::new(cause)));
        }
        *turn += 1;
        let Spec { operation, dtype, count, reduce, root } = spec;
        let call = Call { seq: *turn, operation, dtype, count, reduce, root, timeout: self.timeout };
        self.log.enter(&call);
        let begun = Instant::now();
        let result = act(self.comm.as_ref(), &call).map_err(|error| self.settle(&call, begun, error));
        self.log.leave();
        result
    }

    /// The first cause behind a transport's error, after asking the server of rank 0.
    fn settle(&self, call: &Call, begun: Instant, error: Error) -> Error {
        if let Some(cause) = self.cause() {
            return cause;
        }
        let member = |rank: usize| self.members.get(rank).copied().unwrap_or(rank);
        let error = match error {
            Error::PeerLost { rank, reason } => Error::PeerLost { rank: member(rank), reason },
            Error::Mismatch { rank_a, call_a, rank_b, call_b } => {
                Error::Mismatch { rank_a: member(rank_a), call_a, rank_b: member(rank_b), call_b }
            }
            other => other,
        };
        let cause = match (&self.control, &error) {
            (None, _) => error,
            (Some(control), Error::Timeout { .. }) => {
                let stall = self.stall(call, begun.elapsed(), true);
                control.expire(stall, error)
            }
            (Some(control), _) => control.fail(error),
        };
        self.end(cause.clone());
        cause
    }

    fn stall(&self, call: &Call, waited: Duration, expired: bool) -> Stall {
        Stall {
            group: self.group,
            members: self.members.clone(),
            call: call.fingerprint(),
            seconds: waited.as_secs_f64(),
            expired,
        }
    }
}

impl Watched for Inner {
    fn id(&self) -> u64 {
        self.group
    }

    fn place(&self, seq: u64) -> Place {
        self.log.place(seq)
    }

    fn stalled(&self) -> Option<Stall> {
        let (call, waited) = self.log.stalled()?;
        Some(self.stall(&call, waited, false))
    }

    fn abort(&self) {
        self.comm.abort();
    }
}
