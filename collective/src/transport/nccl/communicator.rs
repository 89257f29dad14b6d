//! One rank's NCCL communicator, on raw device pointers. Nothing here blocks on the device: calls
//! only put work on a stream, and every wait for NCCL itself has a deadline and ends with an abort.

use super::{
    api::{Code, Comm, Config, IN_PROGRESS, REMOTE_ERROR, SUCCESS, UniqueId},
    library::Library,
};
use crate::{Error, Result, communicator::World};
use std::{
    ffi::c_int,
    fmt, ptr,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// How often a call that takes long is looked at.
const POLL: Duration = Duration::from_micros(200);
/// Putting work on a stream takes microseconds, and computation waits for it.
const SOON: Duration = Duration::from_millis(2);

/// `ncclComm_t`. NCCL lets any thread use it, one at a time.
struct Handle(Comm);
// SAFETY: see above; the mutex around it keeps threads apart.
unsafe impl Send for Handle {}

/// A communicator that calls are made on, until it is aborted or destroyed.
pub struct NcclCommunicator {
    pub(super) library: &'static Library,
    pub(super) world: World,
    /// `None` once it is gone.
    handle: Mutex<Option<Handle>>,
    aborted: AtomicBool,
}

impl fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclCommunicator(rank {} of {})", self.world.rank, self.world.size)
    }
}

impl NcclCommunicator {
    /// Joins the communicator of all ranks that have `id`. The thread's current CUDA device becomes
    /// its device.
    ///
    /// # Errors
    /// NCCL's own, or [`Error::Timeout`] if not all ranks have joined in time.
    pub fn init(library: &'static Library, id: &UniqueId, world: World, timeout: Duration) -> Result<Self> {
        let deadline = Instant::now() + timeout;
        let (mut comm, mut config): (Comm, _) = (ptr::null_mut(), Config::non_blocking());
        // SAFETY: both pointers live through the call; the id is passed by value.
        let code = unsafe {
            let (size, rank) = (world.size as c_int, world.rank as c_int);
            (library.api.comm_init_rank_config)(&mut comm, size, *id, rank, &mut config)
        };
        let communicator = NcclCommunicator {
            library,
            world,
            handle: Mutex::new((!comm.is_null()).then_some(Handle(comm))),
            aborted: AtomicBool::new(false),
        };
        let joined = communicator.settled("join a communicator", code, deadline);
        match joined {
            Ok(true) => Ok(communicator),
            Ok(false) => {
                communicator.abort();
                Err(Error::Timeout {
                    call: format!("the making of an NCCL communicator of {} ranks", world.size),
                    seconds: timeout.as_secs_f64(),
                    absent: "NCCL did not say which rank is missing; NCCL_DEBUG=INFO says what it waits for"
                        .into(),
                })
            }
            Err(error) => {
                communicator.abort();
                Err(error)
            }
        }
    }

    /// This rank among all.
    pub fn world(&self) -> World {
        self.world
    }

    /// The library it is made with.
    pub fn library(&self) -> &'static Library {
        self.library
    }

    fn lock(&self) -> MutexGuard<'_, Option<Handle>> {
        self.handle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs one of NCCL's functions.
    pub(super) fn call(&self, what: &str, timeout: Duration, act: impl FnOnce(Comm) -> Code) -> Result<()> {
        let deadline = Instant::now() + timeout;
        let code = match &*self.lock() {
            Some(handle) if !self.aborted.load(Ordering::Acquire) => act(handle.0),
            Some(_) | None => return Err(Error::Aborted),
        };
        if self.settled(what, code, deadline)? {
            return Ok(());
        }
        Err(Error::Timeout {
            call: format!("NCCL: {what}"),
            seconds: timeout.as_secs_f64(),
            absent: "NCCL itself did not get through with it".into(),
        })
    }

    /// Waits until a call that was begun is through with; false if it is not by the deadline.
    fn settled(&self, what: &str, mut code: Code, deadline: Instant) -> Result<bool> {
        let begun = Instant::now();
        while code == IN_PROGRESS {
            if Instant::now() >= deadline {
                return Ok(false);
            }
            if begun.elapsed() < SOON {
                thread::yield_now()
            } else {
                thread::sleep(POLL)
            }
            code = self.state()?;
        }
        match &*self.lock() {
            Some(handle) => self.library.check(what, code, handle.0).map(|()| true),
            None => self.library.check(what, code, ptr::null_mut()).map(|()| true),
        }
    }

    /// What NCCL thinks of the communicator.
    fn state(&self) -> Result<Code> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::Aborted);
        }
        let handle = self.lock();
        let Some(handle) = &*handle else { return Err(Error::Aborted) };
        let mut state = SUCCESS;
        // SAFETY: the handle is alive while it is locked.
        let code = unsafe { (self.library.api.comm_get_async_error)(handle.0, &mut state) };
        self.library.check("ask for errors", code, handle.0).map(|()| state)
    }

    /// What went wrong since the last call, on the device or between machines.
    ///
    /// # Errors
    /// That.
    pub fn poll(&self) -> Result<()> {
        let state = match self.state() {
            Ok(SUCCESS | IN_PROGRESS) => return Ok(()),
            Ok(state) => state,
            Err(error) => return Err(error),
        };
        let what = if state == REMOTE_ERROR { "reach another rank" } else { "go on" };
        let handle = self.lock();
        self.library.check(what, state, handle.as_ref().map_or(ptr::null_mut(), |handle| handle.0))
    }

    /// Ends everything under way, on the device too, and frees the communicator. Later calls fail.
    pub fn abort(&self) {
        self.aborted.store(true, Ordering::Release);
        if let Some(handle) = self.lock().take() {
            // SAFETY: taken out, so that nobody uses it afterwards. Its code does not matter: there is
            // nothing left to try.
            unsafe { (self.library.api.comm_abort)(handle.0) };
        }
    }

    /// Frees the communicator in good order, after its work is done; aborts it if that takes longer
    /// than `timeout`, as it does when other ranks are gone.
    pub fn destroy(&self, timeout: Duration) {
        // SAFETY: the handle is alive while it is locked.
        let finalize = |comm| unsafe { (self.library.api.comm_finalize)(comm) };
        if self.call("finish", timeout, finalize).is_err() {
            return self.abort();
        }
        if let Some(handle) = self.lock().take() {
            self.aborted.store(true, Ordering::Release);
            // SAFETY: taken out, so that nobody uses it afterwards.
            unsafe { (self.library.api.comm_destroy)(handle.0) };
        }
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        // Whoever wanted a good end has called `destroy`.
        self.abort();
    }
}
