//! A communicator with its stream and its watchdog: calls go onto the stream and return, the
//! watchdog follows them to their end, and ends the communicator if that does not come.

use super::{
    NcclCommunicator,
    stream::{Mark, Stream},
};
use crate::{Error, Result, communicator::Call};
use std::{
    any::Any,
    ffi::c_void,
    fmt,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc},
    thread,
    time::{Duration, Instant},
};

/// How often work under way is looked at.
const BUSY: Duration = Duration::from_micros(500);
/// How often an idle communicator is asked for errors.
const IDLE: Duration = Duration::from_millis(500);

/// How long a communicator that is dropped may take to end in good order.
const GRACE: Duration = Duration::from_secs(5);

/// What happens when a call does not end well, on the watchdog's thread.
pub type OnFailure = Box<dyn Fn(&Call, Error) + Send>;

/// The device data plane of a group.
pub struct Plane {
    communicator: Arc<NcclCommunicator>,
    stream: Arc<dyn Stream>,
    shared: Arc<Shared>,
}

impl fmt::Debug for Plane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plane({:?} on {:?})", self.communicator, self.stream)
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    under_way: Vec<UnderWay>,
    /// Everything is to be given up.
    aborted: bool,
    /// Nobody will put anything on the stream any more.
    closed: bool,
    /// Why it was given up, if that was the watchdog's decision.
    failure: Option<Error>,
}

/// A call that the device works on.
struct UnderWay {
    call: Call,
    mark: Box<dyn Mark>,
    begun: Instant,
    /// What it reads and writes.
    _memory: Box<dyn Any + Send>,
    done: mpsc::Sender<Result<()>>,
}

/// A call on its way; dropping it lets it go on.
#[derive(Debug)]
pub struct Pending(mpsc::Receiver<Result<()>>);

impl Pending {
    /// Waits until the device is through with it; the watchdog's deadline bounds that.
    ///
    /// # Errors
    /// Why it was given up.
    pub fn wait(self) -> Result<()> {
        self.0.recv().unwrap_or(Err(Error::Aborted))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn alive(&self) -> Result<()> {
        if self.aborted { Err(self.failure.clone().unwrap_or(Error::Aborted)) } else { Ok(()) }
    }
}

impl Plane {
    /// Watches over `communicator`, whose work goes onto `stream`.
    ///
    /// # Errors
    /// If the watchdog cannot be started.
    pub fn new(communicator: NcclCommunicator, stream: Box<dyn Stream>, failed: OnFailure) -> Result<Self> {
        let (communicator, stream) = (Arc::new(communicator), Arc::<dyn Stream>::from(stream));
        let shared = Arc::<Shared>::default();
        let watchdog = Watchdog {
            communicator: communicator.clone(),
            stream: stream.clone(),
            shared: shared.clone(),
            failed,
        };
        thread::Builder::new()
            .name("ddp-nccl".into())
            .spawn(move || watchdog.run())
            .map_err(|e| Error::io("start NCCL's watchdog", &e))?;
        Ok(Plane { communicator, stream, shared })
    }

    /// The communicator.
    pub fn communicator(&self) -> &NcclCommunicator {
        &self.communicator
    }

    /// Puts a call on the stream, after everything that the device has been given. `memory` is kept
    /// until the device is through with it.
    ///
    /// # Errors
    /// NCCL's or the driver's, for what shows at once. The rest shows to the watchdog, and in
    /// [`Pending::wait`].
    pub fn run(
        &self,
        call: &Call,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        self.shared.lock().alive()?;
        self.stream.enter()?;
        self.stream.wait_for_device()?;
        act(&self.communicator, self.stream.handle())?;
        let mark = self.stream.mark()?;
        let (done, end) = mpsc::channel();
        let begun = Instant::now();
        let mut state = self.shared.lock();
        state.alive()?;
        state.under_way.push(UnderWay { call: call.clone(), mark, begun, _memory: memory, done });
        drop(state);
        self.shared.changed.notify_all();
        let pending = Pending(end);
        if self.stream.orders_device() {
            return Ok(pending);
        }
        pending.wait()?;
        let (done, end) = mpsc::channel();
        // The receiver is right here.
        let _ = done.send(Ok(()));
        Ok(Pending(end))
    }

    /// Lets the watchdog end everything under way. Never blocks.
    pub fn abort(&self) {
        self.shared.lock().aborted = true;
        self.shared.changed.notify_all();
    }

    /// Waits for what is under way, then frees the communicator in good order; all ranks should.
    pub fn destroy(&self, timeout: Duration) {
        let deadline = Instant::now() + timeout;
        let mut state = self.shared.lock();
        while !state.under_way.is_empty() && !state.aborted && Instant::now() < deadline {
            drop(state);
            thread::sleep(BUSY);
            state = self.shared.lock();
        }
        let idle = state.under_way.is_empty() && !state.aborted;
        drop(state);
        if idle && self.stream.enter().is_ok() {
            self.communicator.destroy(deadline.saturating_duration_since(Instant::now()));
        }
        self.abort();
    }
}

impl Drop for Plane {
    /// The watchdog frees the communicator in good order, by and by.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

struct Watchdog {
    communicator: Arc<NcclCommunicator>,
    stream: Arc<dyn Stream>,
    shared: Arc<Shared>,
    failed: OnFailure,
}

impl Watchdog {
    fn run(self) {
        // If the device is gone, the first mark says so.
        let _ = self.stream.enter();
        loop {
            let mut state = self.shared.lock();
            if !state.aborted && !state.closed {
                let patience = if state.under_way.is_empty() { IDLE } else { BUSY };
                let waited = self.shared.changed.wait_timeout(state, patience);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            let verdict = Self::look(&mut state).and_then(|()| self.communicator.poll());
            if state.aborted {
                return self.give_up(state, Error::Aborted);
            }
            match verdict {
                Err(error) => return self.give_up(state, error),
                Ok(()) if state.closed && state.under_way.is_empty() => {
                    drop(state);
                    return self.communicator.destroy(GRACE);
                }
                Ok(()) if state.closed => {
                    drop(state);
                    thread::sleep(BUSY);
                }
                Ok(()) => {}
            }
        }
    }

    /// Lets go of what is done.
    fn look(state: &mut State) -> Result<()> {
        while let Some(first) = state.under_way.first() {
            if first.mark.is_passed()? {
                let first = state.under_way.remove(0);
                // Nobody may be waiting for it.
                let _ = first.done.send(Ok(()));
            } else if first.begun.elapsed() > first.call.timeout {
                return Err(Error::Timeout {
                    call: first.call.to_string(),
                    seconds: first.call.timeout.as_secs_f64(),
                    absent: "all ranks put it on their devices, but NCCL did not finish it there".into(),
                });
            } else {
                break;
            }
        }
        Ok(())
    }

    /// Aborts NCCL, then lets go of the memory of what was under way: not before, because the device
    /// works on it until then. Says why, if that is news and a call was under way; without one the
    /// next call will say so.
    fn give_up(&self, mut state: MutexGuard<'_, State>, error: Error) {
        let under_way = std::mem::take(&mut state.under_way);
        let news = !state.aborted && error != Error::Aborted;
        state.aborted = true;
        state.failure = news.then(|| error.clone());
        drop(state);
        self.communicator.abort();
        if let (true, Some(first)) = (news, under_way.first()) {
            (self.failed)(&first.call, error.clone());
        }
        for one in under_way {
            // Nobody may be waiting for it.
            let _ = one.done.send(Err(error.clone()));
        }
    }
}
