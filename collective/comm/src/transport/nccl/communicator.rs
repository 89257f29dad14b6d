//! One rank's NCCL communicator, on raw device pointers.
//!
//! The communicator is a blocking one, because a non-blocking one starts a thread for every call
//! (NCCL 2.30). A call returns when its work is on the stream, which takes microseconds; the first call
//! also connects the ranks, and blocks while one of them is missing. Every such wait has a deadline:
//!
//! - [`init`](NcclCommunicator::init) and [`destroy`](NcclCommunicator::destroy) run on a helper thread.
//! - Any other call is ended by [`abort`](NcclCommunicator::abort) from another thread, as PyTorch's
//!   watchdog does; the caller holds no lock that this needs.
//!
//! NCCL cannot abort a blocking initialisation, whose communicator is not known yet. After a time-out the
//! helper thread stays in it until the process ends, or aborts the communicator if it is made after all.

use super::{
    api::{Code, Comm, Config, IN_PROGRESS, REMOTE_ERROR, SUCCESS, UniqueId},
    library::Library,
    stream::Stream,
};
use crate::{Error, Result, communicator::World, sync::lock};
use std::{
    ffi::c_int,
    fmt, ptr,
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

/// Time limit for an aborted call to return.
const RETURN: Duration = Duration::from_secs(1);

/// `ncclComm_t`.
#[derive(Clone, Copy)]
struct Handle(Comm);
// SAFETY: NCCL lets any thread use it, one at a time, and any thread abort it meanwhile.
unsafe impl Send for Handle {}

/// A communicator, usable until it is aborted or destroyed.
pub struct NcclCommunicator {
    pub(super) library: &'static Library,
    pub(super) world: World,
    /// `None` once it is aborted or destroyed. Not locked during a call that may block.
    handle: Mutex<Option<Handle>>,
    /// Locked during a call.
    calls: Mutex<()>,
}

impl fmt::Debug for NcclCommunicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NcclCommunicator(rank {} of {})", self.world.rank, self.world.size)
    }
}

impl NcclCommunicator {
    /// Joins the communicator of all ranks with the same `id`, on the device of `stream`.
    ///
    /// # Errors
    /// NCCL's own, or [`Error::Timeout`] if not all ranks have joined in time.
    pub fn init(
        library: &'static Library,
        id: &UniqueId,
        world: World,
        stream: &Arc<dyn Stream>,
        timeout: Duration,
    ) -> Result<Self> {
        let (id, stream) = (*id, stream.clone());
        let (sender, receiver) = mpsc::channel();
        let helper = thread::Builder::new()
            .name("ddp-nccl-init".into())
            .spawn(move || {
                let made = stream.enter().and_then(|()| Self::init_blocking(library, &id, world));
                // If the caller has given up, this drops the communicator, which aborts it.
                let _ = sender.send(made);
            })
            .map_err(|e| Error::io("start the thread that initialises NCCL", &e))?;
        match receiver.recv_timeout(timeout) {
            Ok(made) => {
                // It is past its last statement.
                let _ = helper.join();
                made
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Error::Invalid("the thread that initialises NCCL panicked".into()))
            }
            Err(RecvTimeoutError::Timeout) => Err(Error::timeout(
                format!("initialisation of an NCCL communicator of {} ranks", world.size),
                timeout,
                "NCCL does not report which rank is missing; set NCCL_DEBUG=INFO to see what it waits for",
            )),
        }
    }

    /// Blocks until all ranks have joined.
    fn init_blocking(library: &'static Library, id: &UniqueId, world: World) -> Result<Self> {
        let (mut comm, mut config): (Comm, _) = (ptr::null_mut(), Config::blocking());
        // SAFETY: both pointers live through the call; the id is passed by value.
        let code = unsafe {
            let (size, rank) = (world.size as c_int, world.rank as c_int);
            (library.api.comm_init_rank_config)(&mut comm, size, *id, rank, &mut config)
        };
        // After an error NCCL has freed it.
        library.check("join a communicator", code, ptr::null_mut())?;
        if comm.is_null() {
            return Err(Error::Invalid(format!("{library} initialised no communicator")));
        }
        Ok(NcclCommunicator {
            library,
            world,
            handle: Mutex::new(Some(Handle(comm))),
            calls: Mutex::default(),
        })
    }

    /// Runs one of NCCL's functions, which may block until [`abort`](Self::abort).
    ///
    /// # Errors
    /// NCCL's own, or [`Error::Aborted`].
    pub(super) fn call(&self, what: &str, act: impl FnOnce(Comm) -> Code) -> Result<()> {
        let _calls = lock(&self.calls);
        let Handle(comm) = (*lock(&self.handle)).ok_or(Error::Aborted)?;
        let code = act(comm);
        let handle = lock(&self.handle);
        // Whatever an aborted call returns is about the abort.
        let Handle(comm) = (*handle).ok_or(Error::Aborted)?;
        self.library.check(what, code, comm)
    }

    /// Checks for an asynchronous error since the last call. Never blocks.
    ///
    /// # Errors
    /// That error, or [`Error::Aborted`].
    pub fn poll(&self) -> Result<()> {
        let handle = lock(&self.handle);
        let Handle(comm) = (*handle).ok_or(Error::Aborted)?;
        let mut state = SUCCESS;
        // SAFETY: the handle is alive while it is locked.
        let code = unsafe { (self.library.api.comm_get_async_error)(comm, &mut state) };
        self.library.check("report errors", code, comm)?;
        match state {
            SUCCESS | IN_PROGRESS => Ok(()),
            REMOTE_ERROR => self.library.check("reach another rank", state, comm),
            _ => self.library.check("continue", state, comm),
        }
    }

    /// Aborts all work in progress, including that on the device, and frees the communicator.
    pub fn abort(&self) {
        if let Some(Handle(comm)) = lock(&self.handle).take() {
            // SAFETY: taken out, so that no later call uses it; NCCL ends one that is in progress. Its code
            // does not matter: there is nothing left to try.
            unsafe { (self.library.api.comm_abort)(comm) };
        }
    }

    /// Destroys the communicator after its work is done, or aborts it after `timeout`.
    pub fn destroy(self: &Arc<Self>, stream: &Arc<dyn Stream>, timeout: Duration) {
        let (communicator, stream) = (self.clone(), stream.clone());
        let (sender, receiver) = mpsc::channel();
        let helper = thread::Builder::new().name("ddp-nccl-destroy".into()).spawn(move || {
            let destroyed = stream.enter().and_then(|()| communicator.destroy_blocking());
            drop(communicator);
            // The caller may have given up.
            let _ = sender.send(destroyed);
        });
        let Ok(helper) = helper else { return self.abort() };
        let mut ended = receiver.recv_timeout(timeout);
        if !matches!(ended, Ok(Ok(()))) {
            self.abort();
        }
        if ended == Err(RecvTimeoutError::Timeout) {
            ended = receiver.recv_timeout(RETURN);
        }
        if ended != Err(RecvTimeoutError::Timeout) {
            // It is past its last statement.
            let _ = helper.join();
        }
    }

    /// Blocks until all ranks have called it.
    fn destroy_blocking(&self) -> Result<()> {
        // SAFETY: the handle is alive until it is aborted, which ends this.
        self.call("finish", |comm| unsafe { (self.library.api.comm_finalize)(comm) })?;
        if let Some(Handle(comm)) = lock(&self.handle).take() {
            // SAFETY: taken out, so that nothing uses it afterwards.
            unsafe { (self.library.api.comm_destroy)(comm) };
        }
        Ok(())
    }
}

impl Drop for NcclCommunicator {
    fn drop(&mut self) {
        // A communicator that was shut down cleanly was destroyed before.
        self.abort();
    }
}
