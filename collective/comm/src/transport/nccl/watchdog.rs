//! The watchdog thread of a communicator.
//!
//! It follows calls until the device has finished them, enforces their deadlines, checks NCCL for
//! asynchronous errors, and aborts or destroys the communicator.

use super::{
    NcclCommunicator,
    stream::{Event, Stream},
};
use crate::{
    Error, Result,
    communicator::Call,
    sync::{lock, wait},
};
use std::{
    any::Any,
    collections::VecDeque,
    sync::{Arc, Condvar, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

/// Interval of checks while calls are in progress. Waiting callers check on their own.
const BUSY: Duration = Duration::from_millis(5);
/// Interval of checks on an idle communicator.
const IDLE: Duration = Duration::from_millis(500);
/// Interval of checks while the communicator is being closed.
const CLOSING: Duration = Duration::from_micros(200);

/// Time for the comparison of a call that fails on the device. Different calls are then reported as the cause.
const COMPARISON: Duration = Duration::from_secs(2);

/// Called on the watchdog's thread when a call fails on the device.
pub type OnFailure = Box<dyn Fn(&Call, Error) + Send>;

/// Whether the ranks' calls have been compared, and when.
///
/// Until then, the comparison has the time limit and reports absent ranks.
#[derive(Clone, Debug, Default)]
pub struct Compared(Arc<OnceLock<(Call, Instant)>>);

impl Compared {
    /// Registers the end of the comparison of `call`.
    pub fn set(&self, call: &Call) {
        // It is set once.
        let _ = self.0.set((call.clone(), Instant::now()));
    }

    /// The call, if its time limit has passed.
    fn overdue(&self) -> Option<&Call> {
        self.0.get().filter(|(call, begun)| begun.elapsed() > call.timeout).map(|(call, _)| call)
    }

    /// Waits for the end of the comparison, at most [`COMPARISON`].
    fn wait(&self) {
        let begun = Instant::now();
        while self.0.get().is_none() && begun.elapsed() < COMPARISON {
            thread::sleep(CLOSING);
        }
    }

    /// The call with its number, if it is known; otherwise `call`.
    fn or(&self, call: &Call) -> Call {
        self.0.get().map_or(call, |(call, _)| call).clone()
    }
}

/// A call that the device executes.
pub(super) struct InFlight {
    pub call: Call,
    pub event: Arc<dyn Event>,
    pub compared: Compared,
    /// Memory that the call reads and writes.
    pub _memory: Box<dyn Any + Send>,
    pub outcome: Arc<OnceLock<Result<()>>>,
}

#[derive(Default)]
pub(super) struct WorkerState {
    /// The call that is being enqueued.
    pub entering: Option<(Call, Compared)>,
    pub in_flight: VecDeque<InFlight>,
    /// All work in progress is to be aborted.
    pub aborted: bool,
    /// No more calls follow; the time at which those in progress are aborted.
    pub closing: Option<Instant>,
    /// The communicator was aborted: the device does not access the memory of calls any more.
    pub gone: bool,
    /// The watchdog has ended.
    pub ended: bool,
    /// The reason of an abort by the watchdog.
    failure: Option<Error>,
}

#[derive(Default)]
pub(super) struct WorkerShared {
    pub state: Mutex<WorkerState>,
    changed: Condvar,
}

impl WorkerShared {
    pub fn notify(&self) {
        self.changed.notify_all();
    }
}

impl WorkerState {
    /// Checks that the communicator is neither aborted nor closing.
    ///
    /// # Errors
    /// The reason of the abort, or [`Error::Aborted`].
    pub fn alive(&self) -> Result<()> {
        match (&self.failure, self.aborted || self.closing.is_some()) {
            (_, false) => Ok(()),
            (failure, true) => Err(failure.clone().unwrap_or(Error::Aborted)),
        }
    }

    /// Releases the calls that the device has finished.
    ///
    /// # Errors
    /// The device's.
    pub fn release_finished(&mut self) -> Result<()> {
        while let Some(first) = self.in_flight.front() {
            if !first.event.is_complete()? {
                break;
            }
            if let Some(first) = self.in_flight.pop_front() {
                // It is set once.
                let _ = first.outcome.set(Ok(()));
            }
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.release_finished()?;
        if let Some(call) = self.in_flight.front().and_then(|first| first.compared.overdue()) {
            let absent = "all ranks put it on their devices, but NCCL did not finish it there";
            return Err(Error::timeout(call, call.timeout, absent));
        }
        if let Some(call) = self.entering.as_ref().and_then(|(_, compared)| compared.overdue()) {
            let absent = "all ranks have called it, but NCCL did not put it on this rank's device";
            return Err(Error::timeout(call, call.timeout, absent));
        }
        Ok(())
    }
}

pub(super) struct Watchdog {
    pub communicator: Arc<NcclCommunicator>,
    pub stream: Arc<dyn Stream>,
    pub shared: Arc<WorkerShared>,
    pub failed: OnFailure,
}

/// Registers the watchdog's end, also after a panic.
struct EndGuard(Arc<WorkerShared>);

impl Drop for EndGuard {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
    }
}

impl Watchdog {
    pub fn run(self) {
        let _end = EndGuard(self.shared.clone());
        // If the device is gone, the first event reports it.
        let _ = self.stream.enter();
        loop {
            let mut state = lock(&self.shared.state);
            if !state.aborted && state.closing.is_none() {
                let idle = state.in_flight.is_empty() && state.entering.is_none();
                state = wait(&self.shared.changed, state, if idle { IDLE } else { BUSY });
            }
            let checked = state.check();
            let (aborted, closing, idle) = (state.aborted, state.closing, state.in_flight.is_empty());
            drop(state);
            let checked = checked.and_then(|()| self.communicator.poll());
            match (checked, closing) {
                _ if aborted => return self.abort(Error::Aborted),
                (Err(error), _) => return self.abort(error),
                (Ok(()), None) => {}
                (Ok(()), Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if idle {
                        return self.communicator.destroy(&self.stream, left);
                    }
                    if left.is_zero() {
                        return self.abort(Error::Aborted);
                    }
                    thread::sleep(CLOSING);
                }
            }
        }
    }

    /// Aborts NCCL, then releases the memory of the calls in progress, which the device accesses until then.
    ///
    /// Reports an error that the watchdog found while a call was in progress; otherwise the next call returns
    /// it.
    fn abort(&self, error: Error) {
        let mut state = lock(&self.shared.state);
        let found = !state.aborted && error != Error::Aborted;
        state.aborted = true;
        state.failure = found.then(|| error.clone());
        drop(state);
        self.communicator.abort();
        let mut state = lock(&self.shared.state);
        let in_flight = std::mem::take(&mut state.in_flight);
        let entering = state.entering.clone();
        state.gone = true;
        drop(state);
        let first = in_flight.front().map(|first| (first.call.clone(), first.compared.clone())).or(entering);
        if let (true, Some((call, compared))) = (found, first) {
            compared.wait();
            (self.failed)(&compared.or(&call), error.clone());
        }
        for call in in_flight {
            // It is set once.
            let _ = call.outcome.set(Err(error.clone()));
        }
    }
}
