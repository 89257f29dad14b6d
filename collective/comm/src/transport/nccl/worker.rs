//! A communicator with its stream and its watchdog. Calls return before the device has finished them.

use super::{
    NcclCommunicator,
    stream::{Event, Stream},
    watchdog::{Compared, InFlight, OnFailure, Watchdog, WorkerShared},
};
use crate::{
    Error, Result,
    communicator::Call,
    sync::{lock, pause},
};
use std::{
    any::Any,
    ffi::c_void,
    fmt,
    sync::{Arc, Mutex, OnceLock},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time limit for the clean shutdown of a dropped communicator.
const GRACE: Duration = Duration::from_secs(5);

/// The NCCL communicator of a group. The group's call queue serialises its calls.
pub struct NcclWorker {
    communicator: Arc<NcclCommunicator>,
    stream: Arc<dyn Stream>,
    shared: Arc<WorkerShared>,
    watchdog: Mutex<Option<JoinHandle<()>>>,
}

/// A call in progress. Dropping it does not cancel the call.
#[derive(Debug)]
pub struct Pending {
    event: Arc<dyn Event>,
    outcome: Arc<OnceLock<Result<()>>>,
    shared: Arc<WorkerShared>,
    orders_device: bool,
}

impl fmt::Debug for WorkerShared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WorkerShared")
    }
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
        if self.orders_device { self.event.hold_device() } else { self.wait() }
    }
}

impl NcclWorker {
    /// Starts the watchdog of `communicator`, whose work is enqueued on `stream`.
    ///
    /// # Errors
    /// If the watchdog cannot be started.
    pub fn new(communicator: NcclCommunicator, stream: Arc<dyn Stream>, failed: OnFailure) -> Result<Self> {
        let communicator = Arc::new(communicator);
        let shared = Arc::<WorkerShared>::default();
        let watchdog = Watchdog {
            communicator: communicator.clone(),
            stream: stream.clone(),
            shared: shared.clone(),
            failed,
        };
        let watchdog = thread::Builder::new()
            .name("ddp-nccl".into())
            .spawn(move || watchdog.run())
            .map_err(|e| Error::io("start NCCL's watchdog", &e))?;
        Ok(NcclWorker { communicator, stream, shared, watchdog: Mutex::new(Some(watchdog)) })
    }

    /// Enqueues a call on the stream, behind all work that the device was given so far. `memory` is kept until the
    /// device has finished. The time limit of `call` begins when the ranks' calls are `compared`.
    ///
    /// # Errors
    /// Immediate errors of NCCL or the driver. The watchdog and [`Pending::wait`] report later ones.
    pub fn run(
        &self,
        call: &Call,
        compared: Compared,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let mut state = lock(&self.shared.state);
        state.alive()?;
        state.entering = Some((call.clone(), compared.clone()));
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
            let (call, event, outcome) = (call.clone(), event.clone(), Arc::clone(&outcome));
            state.in_flight.push_back(InFlight { call, event, compared, _memory: memory, outcome });
        }
        alive?;
        state.release_finished()?;
        drop(state);
        if wake {
            self.shared.notify();
        }
        let orders_device = self.stream.orders_device();
        Ok(Pending { event, outcome, shared: self.shared.clone(), orders_device })
    }

    fn put(&self, act: impl FnOnce(&NcclCommunicator, *mut c_void) -> Result<()>) -> Result<Arc<dyn Event>> {
        self.stream.enter()?;
        self.stream.wait_for_device()?;
        act(&self.communicator, self.stream.handle())?;
        self.stream.clone().record_event()
    }

    /// Makes the watchdog abort all work in progress. Never blocks.
    pub fn abort(&self) {
        lock(&self.shared.state).aborted = true;
        self.shared.notify();
    }

    /// Waits for the calls in progress, destroys the communicator together with the other ranks, and ends the
    /// watchdog.
    ///
    /// Aborts after `timeout`.
    pub fn destroy(&self, timeout: Duration) {
        let mut state = lock(&self.shared.state);
        let deadline = Instant::now() + timeout;
        state.closing.get_or_insert(deadline);
        drop(state);
        self.shared.notify();
        let watchdog = lock(&self.watchdog).take();
        // The watchdog's callback may drop the last reference to the group.
        let Some(watchdog) = watchdog.filter(|watchdog| watchdog.thread().id() != thread::current().id())
        else {
            return;
        };
        let begun = Instant::now();
        while !watchdog.is_finished() && Instant::now() < deadline + GRACE {
            pause(begun);
        }
        // An abort may hang in NCCL; the thread is then left behind.
        if watchdog.is_finished() {
            // A panic has been reported.
            let _ = watchdog.join();
        }
    }
}

impl Drop for NcclWorker {
    fn drop(&mut self) {
        self.destroy(GRACE);
    }
}
