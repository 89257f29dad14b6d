//! State shared by all handles of a process group, and execution of a call: number, record, deadline, failure.

use super::{flight_recorder::Endpoints, group_state::GroupState, topology::Topology};
use crate::{Call, Communicator, Error, Result, rendezvous::GroupProbe};
use std::{
    sync::{Arc, Mutex, OnceLock, atomic::Ordering, mpsc::Sender},
    time::Instant,
};
use tracing::info_span;

/// A job of the group's worker thread.
pub(super) type Job = Box<dyn FnOnce() + Send>;

/// State shared by all handles of a process group.
pub(super) struct SharedGroup {
    /// Dropped before the transport, so that the exit is announced before the data connections close.
    pub topology: Arc<Topology>,
    pub state: Arc<GroupState>,
    /// Queue of the group's worker thread.
    pub jobs: Mutex<Option<Sender<Job>>>,
    /// First cause of failure of a world of one.
    ended: OnceLock<Error>,
}

impl SharedGroup {
    pub fn new(topology: Arc<Topology>, state: GroupState) -> Self {
        let state = Arc::new(state);
        state.family.add(&state);
        if let Some(control) = topology.control() {
            let watched: Arc<dyn GroupProbe> = state.clone();
            control.watch(state.group, state.seq.clone(), &watched);
        }
        SharedGroup { topology, state, jobs: Mutex::new(None), ended: OnceLock::new() }
    }

    /// Validates a rank that a caller passed.
    ///
    /// # Errors
    /// [`Error::Invalid`] if it does not exist.
    pub fn check_rank(&self, what: &str, rank: usize) -> Result<usize> {
        if rank < self.state.world.size {
            return Ok(rank);
        }
        Err(Error::Invalid(format!(
            "{what} {rank} does not exist in a group of {} ranks",
            self.state.world.size
        )))
    }

    /// Fails all later calls with `error`, unless the group has failed before, and returns the first cause.
    pub fn report(&self, error: Error) -> Error {
        match self.topology.control() {
            Some(control) => control.fail(error),
            None => self.ended.get_or_init(|| error).clone(),
        }
    }

    /// The first cause of failure, if the group has failed.
    pub fn cause(&self) -> Option<Error> {
        self.topology.control().map_or_else(|| self.ended.get().cloned(), |control| control.cause())
    }

    /// Checks that the group can make the call `spec`.
    fn admit(&self, spec: &Call) -> Result<()> {
        spec.root.map(|root| self.check_rank("root", root)).transpose()?;
        if self.state.destroyed.load(Ordering::Acquire) {
            return Err(Error::Invalid("the process group was destroyed".into()));
        }
        let Some(cause) = self.cause() else { return Ok(()) };
        self.state.write_flight_record(&cause);
        Err(Error::Poisoned(Box::new(cause)))
    }

    /// Makes one collective call, or passes a message between its `endpoints`, one of which is this rank. The caller
    /// holds the call permit.
    ///
    /// # Errors
    /// The first cause, if the call or the group fails.
    pub fn run<R>(
        &self,
        spec: Call,
        endpoints: Option<Endpoints>,
        act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>,
    ) -> Result<R> {
        self.admit(&spec)?;
        let seq = match endpoints {
            None => self.state.next_seq(),
            Some(endpoints) => self.state.next_message(endpoints),
        };
        let call = &spec.numbered(seq, self.state.options.call_timeout());
        let (group, count) = (self.state.group, call.count);
        let span = info_span!("collective", name = &*call.operation, group, seq, count, dtype = ?call.dtype);
        let _span = span.entered();
        self.state.recorder.enter(call, endpoints);
        let begun = Instant::now();
        let result = act(self.state.comm.as_ref(), call)
            .map_err(|error| self.first_cause(call, endpoints, begun, error));
        self.state.recorder.leave(result.as_ref().err());
        if let Err(error) = &result {
            self.state.write_flight_record(error);
        }
        result
    }

    /// The call `spec` as the next one, for messages; a call that is not compared yet may precede it.
    ///
    /// # Errors
    /// The first cause, if the group has failed.
    pub fn next_call(&self, spec: Call) -> Result<Call> {
        self.admit(&spec)?;
        Ok(spec.numbered(self.state.last_seq() + 1, self.state.options.call_timeout()))
    }

    /// Fails the group and returns the first cause.
    pub fn fail(&self, error: Error) -> Error {
        if let Some(cause) = self.cause() {
            return cause;
        }
        let cause = self.report(error);
        self.state.write_flight_record(&cause);
        cause
    }

    /// The first cause behind a transport's error, as the control plane decides.
    fn first_cause(&self, call: &Call, message: Option<Endpoints>, begun: Instant, error: Error) -> Error {
        if let Some(cause) = self.cause() {
            return cause;
        }
        let error = error.with_ranks(|rank| self.state.members.get(rank).copied().unwrap_or(rank));
        match (self.topology.control(), &error) {
            (Some(control), Error::Timeout { .. }) => {
                control.expire(self.state.stall(call, message, begun.elapsed(), true), error)
            }
            _ => self.report(error),
        }
    }
}
