//! The making of a call: its number, its record, its deadline, and what becomes of its failure.

use super::{
    device::Attached,
    log::{FlightRecord, Log, microseconds},
    site::Site,
    turn::Turns,
};
use crate::{
    DType, Element, Error, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    rendezvous::{
        Arbiter, Watched,
        wire::{Place, Stall},
    },
};
use std::{
    collections::HashMap,
    path::PathBuf,
    sync::{
        Arc, Mutex, Once, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::Sender,
    },
    time::{Duration, Instant, SystemTime},
};

/// A job of the group's worker thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

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

/// The part of a group that its arbiter watches. It does not own the arbiter: whoever drops the
/// last of a group says goodbye, and that must not be the arbiter's own thread.
pub(super) struct Core {
    pub group: u64,
    pub members: Vec<usize>,
    pub world: World,
    pub comm: Box<dyn Communicator>,
    /// Where data on a device goes, once attached.
    pub device: OnceLock<Attached>,
    /// Number of the last collective.
    seq: Arc<AtomicU64>,
    log: Log,
    timeout: Duration,
    flight_folder: Option<PathBuf>,
    recorded: Once,
}

pub(super) struct Inner {
    /// These two before the transport, so that the goodbye goes out before the data connections
    /// close.
    pub arbiter: Option<Arc<dyn Arbiter>>,
    pub site: Arc<Site>,
    pub core: Arc<Core>,
    pub turns: Turns,
    pub jobs: Mutex<Option<Sender<Job>>>,
    pub destroyed: AtomicBool,
    /// Number of the last message from one rank of the group to another.
    messages: Mutex<HashMap<(usize, usize), u64>>,
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
        let core = Core {
            world: World { rank, size: members.len() },
            group,
            members,
            comm,
            device: OnceLock::new(),
            seq: Arc::new(AtomicU64::new(0)),
            log: Log::default(),
            timeout,
            flight_folder,
            recorded: Once::new(),
        };
        let inner = Inner {
            arbiter,
            site,
            core: Arc::new(core),
            turns: Turns::default(),
            jobs: Mutex::new(None),
            destroyed: AtomicBool::new(false),
            messages: Mutex::default(),
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
        if self.destroyed.load(Ordering::Acquire) {
            return Err(Error::Invalid("the process group was destroyed".into()));
        }
        let Some(cause) = self.cause() else { return Ok(()) };
        self.core.write_flight_record(&cause);
        Err(Error::Poisoned(Box::new(cause)))
    }

    /// Makes one collective call. The caller has the turn.
    pub fn run<R>(&self, spec: Spec, act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>) -> Result<R> {
        self.alive()?;
        let seq = self.core.seq.fetch_add(1, Ordering::Relaxed) + 1;
        let Spec { operation, dtype, count, reduce, root } = spec;
        let call = Call { seq, operation, dtype, count, reduce, root, timeout: self.core.timeout };
        self.record(&call, self.core.members.clone(), false, || act(self.core.comm.as_ref(), &call))
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
        let seq = {
            let mut messages = self.messages.lock().unwrap_or_else(PoisonError::into_inner);
            let seq = messages.entry((from, to)).or_default();
            *seq += 1;
            *seq
        };
        let Spec { operation, dtype, count, reduce, .. } = spec;
        let call =
            Call { seq, operation, dtype, count, reduce, root: Some(from), timeout: self.core.timeout };
        let peer = if from == self.core.world.rank { to } else { from };
        self.record(&call, vec![self.core.members[peer]], true, || act(self.core.comm.as_ref(), &call))
    }

    fn record<R>(
        &self,
        call: &Call,
        members: Vec<usize>,
        direct: bool,
        act: impl FnOnce() -> Result<R>,
    ) -> Result<R> {
        self.core.log.enter(call, direct);
        let begun = Instant::now();
        let result = act().map_err(|error| self.settle(call, members, direct, begun, error));
        self.core.log.leave(result.as_ref().err());
        if let Err(error) = &result {
            self.core.write_flight_record(error);
        }
        result
    }

    /// The first cause behind a transport's error, after asking the arbiter.
    fn settle(&self, call: &Call, members: Vec<usize>, direct: bool, begun: Instant, error: Error) -> Error {
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
                arbiter.expire(self.core.stall(call, members, direct, begun.elapsed(), true), error)
            }
            (Some(arbiter), _) => arbiter.fail(error),
        };
        self.end(cause.clone());
        cause
    }
}

impl Core {
    /// Number of the last collective made.
    pub fn last_seq(&self) -> u64 {
        self.seq.load(Ordering::Relaxed)
    }

    pub fn stall(
        &self,
        call: &Call,
        members: Vec<usize>,
        direct: bool,
        waited: Duration,
        expired: bool,
    ) -> Stall {
        let seconds = waited.as_secs_f64();
        Stall { group: self.group, members, call: call.fingerprint(), direct, seconds, expired }
    }

    /// Leaves a record behind, once, if a folder is chosen. A record that cannot be written must not
    /// hide the error that it is about, so that failure goes to standard error only.
    pub fn write_flight_record(&self, error: &Error) {
        let Some(folder) = &self.flight_folder else { return };
        self.recorded.call_once(|| {
            let record = FlightRecord {
                rank: self.members[self.world.rank],
                members: self.members.clone(),
                group: self.group,
                host: crate::rendezvous::host(),
                pid: std::process::id(),
                written_us: microseconds(SystemTime::now()),
                error: error.cause().to_string(),
                calls: self.log.calls(),
            };
            if let Err(error) = record.write(folder) {
                eprintln!("rank {}: {error}", record.rank);
            }
        });
    }
}

impl Watched for Core {
    fn id(&self) -> u64 {
        self.group
    }

    fn counter(&self) -> Arc<AtomicU64> {
        self.seq.clone()
    }

    fn place(&self, seq: Option<u64>) -> Place {
        self.log.place(seq, self.last_seq())
    }

    fn stalled(&self) -> Option<Stall> {
        let (call, waited) = self.log.stalled()?;
        Some(self.stall(&call, self.members.clone(), false, waited, false))
    }

    fn abort(&self) {
        self.comm.abort();
        if let Some(attached) = self.device.get() {
            attached.plane.abort();
        }
    }

    fn record(&self, cause: &Error) {
        // A rank inside a call writes its record when that has returned.
        if !self.log.inside() {
            self.write_flight_record(cause);
        }
    }
}
