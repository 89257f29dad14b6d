//! One MPI operation in progress: the request and its memory.
//!
//! MPI cannot cancel an operation. The memory therefore belongs to the operation and not to the caller: after
//! a time-out it is leaked.

use super::library::{Library, check};
use crate::{Result, sync::pause, transport::method::Deadline};
use mpi::ffi;
use std::{
    ffi::{c_int, c_void},
    mem::ManuallyDrop,
    time::Instant,
};

/// Send and receive buffers.
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

/// Starts an operation with `begin`, which receives both buffers and the request to fill in, and waits for
/// it.
pub(super) fn run(
    limits: Deadline<'_>,
    memory: Memory,
    begin: impl FnOnce(*const c_void, *mut c_void, *mut ffi::MPI_Request) -> c_int,
) -> Result<Memory> {
    let what = || format!("MPI on behalf of {}", *limits.call);
    let mut memory = ManuallyDrop::new(memory);
    // SAFETY: the null request is a constant of the library.
    let mut request = unsafe { ffi::RSMPI_REQUEST_NULL };
    let (send, recv) = (memory.send.as_ptr(), memory.recv.as_mut_ptr());
    let code = begin(send.cast(), recv.cast(), &mut request);
    check(&what(), code).inspect_err(|_| Library::abandon())?;
    let begun = Instant::now();
    loop {
        let mut done = 0;
        // SAFETY: the request is the one that `begin` filled in and nothing else uses; the status
        // is not wanted.
        let code = unsafe { ffi::MPI_Test(&mut request, &mut done, ffi::RSMPI_STATUS_IGNORE) };
        check(&what(), code).inspect_err(|_| Library::abandon())?;
        if done != 0 {
            return Ok(ManuallyDrop::into_inner(memory));
        }
        // After an error the memory is left to MPI.
        limits.check(|| "MPI did not complete it".into()).inspect_err(|_| Library::abandon())?;
        pause(begun);
    }
}
