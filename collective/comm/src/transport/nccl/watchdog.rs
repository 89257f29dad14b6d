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

/// A call whose ranks compare it, before or after it is enqueued.
///
/// Until then, the comparison has the time limit and reports absent ranks.
#[derive(Clone, Debug)]
pub struct DeviceCall(Arc<(Call, OnceLock<(Call, Instant)>)>);

impl DeviceCall {
    /// The number of `call` may be preliminary.
    pub fn new(call: Call) -> Self {
        DeviceCall(Arc::new((call, OnceLock::new())))
    }

    /// Registers the end of the comparison of this call, which is `call` with its number.
    pub fn compared(self, call: &Call) -> Self {
        // It is set once.
        let _ = self.0.1.set((call.clone(), Instant::now()));
        self
    }

    /// The call, with its number once it is compared.
    pub fn call(&self) -> &Call {
        self.0.1.get().map_or(&self.0.0, |(call, _)| call)
    }

    /// The call, if its time limit has passed.
    fn overdue(&self) -> Option<&Call> {
        self.0.1.get().filter(|(call, begun)| begun.elapsed() > call.timeout).map(|(call, _)| call)
    }

    /// Waits for the end of the comparison, at most [`COMPARISON`].
    fn wait(&self) {
        let begun = Instant::now();
        while self.0.1.get().is_none() && begun.elapsed() < COMPARISON {
            thread::sleep(CLOSING);
        }
    }
}

/// A call that the device executes.
#[derive(Debug)]
pub(super) struct InFlight {
    pub call: DeviceCall,
    pub event: Arc<dyn Event>,
    /// Memory that the call reads and writes.
    pub _memory: Box<dyn Any + Send>,
    pub outcome: Arc<OnceLock<Result<()>>>,
}

#[derive(Debug, Default)]
pub(super) struct WorkerState {
    /// The call that is being enqueued.
    pub entering: Option<DeviceCall>,
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

/// A communicator and its stream, with the state that its watchdog shares.
#[derive(Debug)]
pub(super) struct WorkerShared {
    pub communicator: Arc<NcclCommunicator>,
    pub stream: Arc<dyn Stream>,
    pub state: Mutex<WorkerState>,
    pub changed: Condvar,
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
        if let Some(call) = self.in_flight.front().and_then(|first| first.call.overdue()) {
            let absent = "all ranks put it on their devices, but NCCL did not finish it there";
            return Err(Error::timeout(call, call.timeout, absent));
        }
        if let Some(call) = self.entering.as_ref().and_then(DeviceCall::overdue) {
            let absent = "all ranks have called it, but NCCL did not put it on this rank's device";
            return Err(Error::timeout(call, call.timeout, absent));
        }
        Ok(())
    }
}

/// Registers the watchdog's end, also after a panic.
struct EndGuard<'a>(&'a WorkerShared);

impl Drop for EndGuard<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).ended = true;
    }
}

impl WorkerShared {
    /// The watchdog.
    pub fn watch(&self, failed: &OnFailure) {
        let _end = EndGuard(self);
        // If the device is gone, the first event reports it.
        let _ = self.stream.enter();
        loop {
            let mut state = lock(&self.state);
            if !state.aborted && state.closing.is_none() {
                let idle = state.in_flight.is_empty() && state.entering.is_none();
                state = wait(&self.changed, state, if idle { IDLE } else { BUSY });
            }
            let checked = state.check();
            let (aborted, closing, idle) = (state.aborted, state.closing, state.in_flight.is_empty());
            drop(state);
            let checked = checked.and_then(|()| self.communicator.poll());
            match (checked, closing) {
                _ if aborted => return self.abort(Error::Aborted, failed),
                (Err(error), _) => return self.abort(error, failed),
                (Ok(()), None) => {}
                (Ok(()), Some(deadline)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if idle {
                        return self.communicator.destroy(&self.stream, left);
                    }
                    if left.is_zero() {
                        return self.abort(Error::Aborted, failed);
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
    fn abort(&self, error: Error, failed: &OnFailure) {
        let mut state = lock(&self.state);
        let found = !state.aborted && error != Error::Aborted;
        state.aborted = true;
        state.failure = found.then(|| error.clone());
        drop(state);
        self.communicator.abort();
        let mut state = lock(&self.state);
        let in_flight = std::mem::take(&mut state.in_flight);
        let entering = state.entering.clone();
        state.gone = true;
        drop(state);
        if let (true, Some(call)) = (found, in_flight.front().map(|first| first.call.clone()).or(entering)) {
            call.wait();
            failed(call.call(), error.clone());
        }
        for call in in_flight {
            // It is set once.
            let _ = call.outcome.set(Err(error.clone()));
        }
    }
}
