//! One MPI operation under way: the request, and the memory it works on until it is done.
//!
//! MPI cannot take an operation back. The memory therefore belongs to the operation and not to the
//! caller: if the deadline passes, it is left to MPI for good.

use super::library::{Library, check};
use crate::{Error, Result, transport::method::MethodCall};
use mpi::ffi;
use std::{
    ffi::{c_int, c_void},
    hint,
    mem::ManuallyDrop,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::{Duration, Instant},
};

/// Checks before the processor is offered to others, and before this thread sleeps between checks.
const SPINS: u32 = 200;
const YIELDS: u32 = 2_000;
const NAP: Duration = Duration::from_micros(50);

/// How long, and under which flag, a call may wait.
#[derive(Clone, Copy)]
pub(super) struct Patience<'a> {
    pub call: MethodCall<'a>,
    pub begun: Instant,
    pub aborted: &'a AtomicBool,
}

/// What is sent and what is received.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub send: Vec<u8>,
    pub recv: Vec<u8>,
}

impl Memory {
    pub fn new(send: Vec<u8>, recv: usize) -> Self {
        Memory { send, recv: vec![0; recv] }
    }
}

/// A number of bytes as MPI takes it.
pub(super) fn count(bytes: usize) -> Result<c_int> {
    c_int::try_from(bytes).map_err(|_| Error::Invalid(format!("{bytes} bytes are too many for one MPI call")))
}

/// Starts an operation with `begin`, which gets what to send, where to receive and the request to
/// fill in, and waits for its end.
pub(super) fn run(
    patience: Patience<'_>,
    memory: Memory,
    begin: impl FnOnce(*const c_void, *mut c_void, *mut ffi::MPI_Request) -> c_int,
) -> Result<Memory> {
    let what = || format!("MPI on behalf of {}", patience.call);
    let mut memory = ManuallyDrop::new(memory);
    // SAFETY: the null request is a constant of the library.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    let (send, recv) = (memory.send.as_ptr(), memory.recv.as_mut_ptr());
    let code = begin(send.cast(), recv.cast(), &mut request);
    check(&what(), code).inspect_err(|_| Library::abandon())?;
    let mut tries = 0u32;
    loop {
        let mut done = 0;
        // SAFETY: the request is the one that `begin` filled in and nobody else knows; the status
        // is not wanted.
        let code = unsafe { ffi::MPI_Test(&mut request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        check(&what(), code).inspect_err(|_| Library::abandon())?;
        if done != 0 {
            return Ok(ManuallyDrop::into_inner(memory));
        }
        // From here on the memory is MPI's, if this ends in an error.
        patience.check().inspect_err(|_| Library::abandon())?;
        tries = tries.saturating_add(1);
        match tries {
            0..SPINS => hint::spin_loop(),
            SPINS..YIELDS => thread::yield_now(),
            YIELDS.. => thread::sleep(NAP),
        }
    }
}

impl Patience<'_> {
    fn check(&self) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::Aborted);
        }
        let waited = self.begun.elapsed();
        if waited < self.call.timeout {
            return Ok(());
        }
        Err(Error::Timeout {
            call: self.call.to_string(),
            seconds: waited.as_secs_f64(),
            absent: "MPI did not complete it".into(),
        })
    }
}
