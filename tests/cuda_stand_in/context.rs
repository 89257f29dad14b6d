//! Contexts: each device has a primary one, which a thread makes current before it uses the device.
//!
//! A new thread has none. Events that exist, and waits for them, need none.

use crate::{INVALID_CONTEXT, SUCCESS, Status, device};
use std::{cell::Cell, ffi::c_int};

/// Offset of the handle of a primary context from its device's number.
const FIRST: usize = 0x1000;

thread_local! {
    /// The context of the calling thread; 0 for none.
    static CURRENT: Cell<usize> = const { Cell::new(0) };
}

/// The calling thread's context, which `call` needs.
pub fn current(call: &str) -> Result<usize, Status> {
    match CURRENT.get() {
        0 => {
            eprintln!("CUDA stand-in: {call} on a thread without a context");
            Err(INVALID_CONTEXT)
        }
        context => Ok(context),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Status {
    unsafe { *context = FIRST + device as usize };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    let exists = context == 0 || (FIRST..FIRST + device::count()).contains(&context);
    if !exists {
        return INVALID_CONTEXT;
    }
    CURRENT.set(context);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    unsafe { *context = CURRENT.get() };
    SUCCESS
}

/// Device of a context, by its number on the machine.
pub fn device(context: usize) -> c_int {
    device::number(context - FIRST).map_or(-1, c_int::from)
}

/// Device of the calling thread for libraries over the CUDA runtime, which use device 0 on threads without a context.
#[unsafe(no_mangle)]
pub extern "C" fn cudaStandInDevice() -> c_int {
    device(CURRENT.get().max(FIRST))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Status {
    or_return!(current("cuCtxGetStreamPriorityRange"));
    unsafe { (*least, *greatest) = (0, -5) };
    SUCCESS
}
