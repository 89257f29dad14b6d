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
use crate::{
    Error, Result,
    communicator::World,
    sync::{join_within, lock},
};
use std::{
    ffi::c_int,
    ptr,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

/// Time limit for an aborted call to return.
const RETURN: Duration = Duration::from_secs(1);

/// `ncclComm_t`.
#[derive(Clone, Copy, Debug)]
struct Handle(Comm);
// SAFETY: NCCL lets any thread use it, one at a time, and any thread abort it meanwhile.
unsafe impl Send for Handle {}

/// A communicator, usable until it is aborted or destroyed.
#[derive(Debug)]
pub struct NcclCommunicator {
    pub(super) library: &'static Library,
    pub(super) world: World,
    /// `None` once it is aborted or destroyed. Not locked during a call that may block.
    handle: Mutex<Option<Handle>>,
    /// Locked during a call.
    calls: Mutex<()>,
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
        let helper = thread::Builder::new()
            .name("ddp-nccl-init".into())
            .spawn(move || stream.enter().and_then(|()| Self::init_blocking(library, &id, world)))
            .map_err(|e| Error::io("start the thread that initialises NCCL", &e))?;
        match join_within(helper, timeout) {
            Ok(Ok(made)) => made,
            Ok(Err(_)) => Err(Error::Invalid("the thread that initialises NCCL panicked".into())),
            // A communicator that is made after all is dropped with the thread, which aborts it.
            Err(_) => Err(Error::timeout(
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
        let helper = thread::Builder::new()
            .name("ddp-nccl-destroy".into())
            .spawn(move || stream.enter().and_then(|()| communicator.destroy_blocking()));
        let Ok(helper) = helper else { return self.abort() };
        let ended = join_within(helper, timeout);
        if !matches!(ended, Ok(Ok(Ok(())))) {
            self.abort();
        }
        if let Err(helper) = ended {
            let _ = join_within(helper, RETURN);
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
