//! The making of a call: its number, its record, its deadline, and what becomes of its failure.

use super::{group_state::Core, log::Ends, site::Site, turn::Turns};
use crate::{
    DType, Element, Error, ReduceOp, Result,
    communicator::{Call, Communicator},
    rendezvous::{
        Arbiter, Watched,
        callers::{Waiting, Worker},
    },
};
use std::{
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering, mpsc::Sender},
    time::{Duration, Instant},
};

/// A job of the group's worker thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// The group's worker thread and its job queue.
pub(super) struct Queue {
    pub jobs: Sender<Job>,
    /// Its registration with the arbiter, if the group has one.
    pub worker: Option<Worker>,
}

/// What a group is made of.
pub(super) struct Parts {
    /// 0 for the group of all ranks.
    pub group: u64,
    /// World rank of every rank of the group.
    pub members: Vec<usize>,
    pub rank: usize,
    pub comm: Box<dyn Communicator>,
    pub arbiter: Option<Arc<dyn Arbiter>>,
    pub timeout: Duration,
    pub flight_folder: Option<PathBuf>,
    pub site: Arc<Site>,
}

pub(super) struct Inner {
    /// These two before the transport, so that the goodbye goes out before the data connections
    /// close.
    pub arbiter: Option<Arc<dyn Arbiter>>,
    pub site: Arc<Site>,
    pub core: Arc<Core>,
    pub turns: Turns,
    pub jobs: Mutex<Option<Queue>>,
    /// Why no call can be made any more, where there is no arbiter to know it.
    ended: Mutex<Option<Error>>,
}

/// What is known of a call before it gets its number.
pub(super) struct Spec {
    pub operation: &'static str,
    pub dtype: DType,
    pub count: usize,
    pub reduce: Option<ReduceOp>,
    pub root: Option<usize>,
}

impl Spec {
    pub fn new<T: Element>(operation: &'static str, count: usize) -> Self {
        Spec { operation, dtype: T::DTYPE, count, reduce: None, root: None }
    }

    pub fn reduce(mut self, op: ReduceOp) -> Self {
        self.reduce = Some(op);
        self
    }

    pub fn root(mut self, root: usize) -> Self {
        self.root = Some(root);
        self
    }
}

impl Inner {
    pub fn new(parts: Parts) -> Self {
        let Parts { group, members, rank, comm, arbiter, timeout, flight_folder, site } = parts;
        let core = Core::new(group, members, rank, comm, timeout, flight_folder);
        let inner = Inner {
            arbiter,
            site,
            core: Arc::new(core),
            turns: Turns::default(),
            jobs: Mutex::new(None),
            ended: Mutex::new(None),
        };
        if let Some(arbiter) = &inner.arbiter {
            let watched: Arc<dyn Watched> = inner.core.clone();
            arbiter.watch(&watched);
        }
        inner
    }

    /// A rank of the group that a caller named.
    pub fn check_rank(&self, what: &str, rank: usize) -> Result<usize> {
        if rank < self.core.world.size {
            return Ok(rank);
        }
        Err(Error::Invalid(format!(
            "{what} {rank} does not exist in a group of {} ranks",
            self.core.world.size
        )))
    }

    pub fn end(&self, cause: Error) {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(cause);
    }

    pub fn cause(&self) -> Option<Error> {
        let known = self.arbiter.as_ref().and_then(|arbiter| arbiter.cause());
        known.or_else(|| self.ended.lock().unwrap_or_else(PoisonError::into_inner).clone())
    }

    fn alive(&self) -> Result<()> {
        if self.core.destroyed.load(Ordering::Acquire) {
            return Err(Error::Invalid("the process group was destroyed".into()));
        }
        let Some(cause) = self.cause() else { return Ok(()) };
        self.core.write_flight_record(&cause);
        Err(Error::Poisoned(Box::new(cause)))
    }

    /// Makes one collective call. The caller has the turn.
    pub fn run<R>(&self, spec: Spec, act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>) -> Result<R> {
        self.alive()?;
        let seq = self.core.next_seq();
        let Spec { operation, dtype, count, reduce, root } = spec;
        let call = Call { seq, operation, dtype, count, reduce, root, timeout: self.core.timeout };
        self.record(&call, None, || act(self.core.comm.as_ref(), &call))
    }

    /// Passes one message from rank `from` to rank `to`, one of which is this one.
    pub fn pass<R>(
        &self,
        spec: Spec,
        from: usize,
        to: usize,
        act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>,
    ) -> Result<R> {
        self.alive()?;
        let seq = self.core.next_message(from, to);
        let Spec { operation, dtype, count, reduce, .. } = spec;
        let call =
            Call { seq, operation, dtype, count, reduce, root: Some(from), timeout: self.core.timeout };
        self.record(&call, Some((from, to)), || act(self.core.comm.as_ref(), &call))
    }

    /// Marks the current thread as waiting until the guard is dropped.
    pub fn waiting(&self) -> Option<Waiting<'_>> {
        self.arbiter.as_ref().map(|arbiter| arbiter.callers().wait())
    }

    /// Runs a call and records it. `message` is set for a message between two ranks.
    fn record<R>(&self, call: &Call, message: Option<Ends>, act: impl FnOnce() -> Result<R>) -> Result<R> {
        // In this order, so that a thread that counts as waiting always has its call recorded.
        self.core.log.enter(call, message);
        let waiting = self.waiting();
        let begun = Instant::now();
        let result = act();
        drop(waiting);
        let result = result.map_err(|error| self.settle(call, message, begun, error));
        self.core.log.leave(result.as_ref().err());
        if let Err(error) = &result {
            self.core.write_flight_record(error);
        }
        result
    }

    /// The first cause behind a transport's error, after asking the arbiter.
    fn settle(&self, call: &Call, message: Option<Ends>, begun: Instant, error: Error) -> Error {
        if let Some(cause) = self.cause() {
            return cause;
        }
        let member = |rank: usize| self.core.members.get(rank).copied().unwrap_or(rank);
        let error = match error {
            Error::PeerLost { rank, reason } => Error::PeerLost { rank: member(rank), reason },
            Error::Mismatch { rank_a, call_a, rank_b, call_b } => {
                Error::Mismatch { rank_a: member(rank_a), call_a, rank_b: member(rank_b), call_b }
            }
            other => other,
        };
        let cause = match (&self.arbiter, &error) {
            (None, _) => error,
            (Some(arbiter), Error::Timeout { .. }) => {
                arbiter.expire(self.core.stall(call, message, begun.elapsed(), true), error)
            }
            (Some(arbiter), _) => arbiter.fail(error),
        };
        self.end(cause.clone());
        cause
    }
}
