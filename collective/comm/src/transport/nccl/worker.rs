//! A communicator with its stream and its watchdog. Calls return before the device has finished them.

use super::{
    NcclCommunicator,
    stream::{Event, Stream},
    watchdog::{DeviceCall, InFlight, OnFailure, WorkerShared},
};
use crate::{
    Error, Result,
    sync::{join_within, lock, pause},
};
use std::{
    any::Any,
    ffi::c_void,
    sync::{Arc, Condvar, Mutex, OnceLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time limit for the clean shutdown of a dropped communicator.
const GRACE: Duration = Duration::from_secs(5);

/// The NCCL communicator of a group. The group's call queue serialises its calls.
pub struct NcclWorker {
    shared: Arc<WorkerShared>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// A call in progress. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct Pending {
    event: Arc<dyn Event>,
    outcome: Arc<OnceLock<Result<()>>>,
    shared: Arc<WorkerShared>,
}

impl Pending {
    /// Waits on the host until the device has finished the call. The watchdog enforces the deadline.
    ///
    /// # Errors
    /// The reason why the call was aborted.
    pub fn wait(&self) -> Result<()> {
        let begun = Instant::now();
        loop {
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            let passed = self.event.is_complete()?;
            let state = lock(&self.shared.state);
            // An abort also completes the work on the stream.
            if passed && !state.aborted {
                return Ok(());
            }
            if state.ended {
                return self.outcome.get().cloned().unwrap_or(Err(Error::Aborted));
            }
            drop(state);
            pause(begun);
        }
    }

    /// Makes all work submitted to the device afterwards wait for the call.
    ///
    /// If the device does not order streams, the host waits.
    ///
    /// # Errors
    /// The driver's, or the reason why the call was aborted.
    pub fn hold_device(&self) -> Result<()> {
        if self.shared.stream.orders_device() { self.event.hold_device() } else { self.wait() }
    }
}

impl NcclWorker {
    /// Starts the watchdog of `communicator`, whose work is enqueued on `stream`.
    ///
    /// # Errors
    /// If the watchdog cannot be started.
    pub fn new(communicator: NcclCommunicator, stream: Arc<dyn Stream>, failed: OnFailure) -> Result<Self> {
        let (communicator, state, changed) = (Arc::new(communicator), Mutex::default(), Condvar::new());
        let shared = Arc::new(WorkerShared { communicator, stream, state, changed });
        let watched = shared.clone();
        let watchdog = thread::Builder::new()
            .name("ddp-nccl".into())
            .spawn(move || watched.watch(&failed))
            .map_err(|e| Error::io("start NCCL's watchdog", &e))?;
        Ok(NcclWorker { shared, watchdog: Mutex::new(Some(watchdog)) })
    }

    /// Enqueues a call on the stream, behind all work that the device was given so far. `memory` is kept until the
    /// device has finished. The time limit of `call` begins when it is compared.
    ///
    /// # Errors
    /// Immediate errors of NCCL or the driver. The watchdog and [`Pending::wait`] report later ones.
    pub fn run(
        &self,
        call: DeviceCall,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let mut state = lock(&self.shared.state);
        state.alive()?;
        state.entering = Some(call.clone());
        drop(state);
        let put = self.put(act);
        let outcome = Arc::default();
        let mut state = lock(&self.shared.state);
        state.entering = None;
        let alive = state.alive();
        let event = match (put, &alive) {
            (Ok(event), _) => event,
            (Err(_), Err(failure)) => return Err(failure.clone()),
            (Err(error), Ok(())) => return Err(error),
        };
        // The watchdog checks often while calls are in progress.
        let wake = state.in_flight.is_empty();
        if !state.gone {
            let (event, outcome) = (event.clone(), Arc::clone(&outcome));
            state.in_flight.push_back(InFlight { call, event, _memory: memory, outcome });
        }
        alive?;
        state.release_finished()?;
        drop(state);
        if wake {
            self.shared.changed.notify_all();
        }
        Ok(Pending { event, outcome, shared: self.shared.clone() })
    }

    fn put(&self, act: impl FnOnce(&NcclCommunicator, *mut c_void) -> Result<()>) -> Result<Arc<dyn Event>> {
        let WorkerShared { communicator, stream, .. } = &*self.shared;
        stream.enter()?;
        stream.wait_for_device()?;
        act(communicator, stream.handle())?;
        stream.clone().record_event()
    }

    /// Makes the watchdog abort all work in progress. Never blocks.
    pub fn abort(&self) {
        lock(&self.shared.state).aborted = true;
        self.shared.changed.notify_all();
    }

    /// Waits for the calls in progress, destroys the communicator together with the other ranks, and ends the
    /// watchdog.
    ///
    /// Aborts after `timeout`.
    pub fn destroy(&self, timeout: Duration) {
        let mut state = lock(&self.shared.state);
        state.closing.get_or_insert(Instant::now() + timeout);
        drop(state);
        self.shared.changed.notify_all();
        let watchdog = lock(&self.watchdog).take();
        // The watchdog's callback may drop the last reference to the group.
        let Some(watchdog) = watchdog.filter(|watchdog| watchdog.thread().id() != thread::current().id())
        else {
            return;
        };
        // An abort may hang in NCCL; the thread is then left behind. A panic has been reported.
        let _ = join_within(watchdog, timeout + GRACE);
    }
}

impl Drop for NcclWorker {
    fn drop(&mut self) {
        self.destroy(GRACE);
    }
}
