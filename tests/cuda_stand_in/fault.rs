//! Reports invalid memory accesses and integer divisions by zero in kernels before the signal ends the process.
//!
//! In CUDA the result of such a division is undefined; here it is an error.

use crate::memory;
use std::{
    cell::Cell,
    ffi::{c_int, c_void},
    fmt::{self, Write},
    mem, ptr,
    sync::Once,
};

thread_local! {
    /// Name of the work that the device's thread executes; `None` on all other threads.
    static DOING: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Sets the name of the work that the calling thread executes for the device.
pub fn doing(what: &'static str) {
    DOING.set(Some(what));
}

/// `struct sigaction` of x86-64 Linux.
#[repr(C)]
struct Action {
    handler: usize,
    mask: [u64; 16],
    flags: c_int,
    restorer: usize,
}

unsafe extern "C" {
    fn sigaction(signal: c_int, action: *const Action, old: *mut Action) -> c_int;
    fn write(file: c_int, bytes: *const c_void, length: usize) -> isize;
}
const SIGFPE: c_int = 8;
const SIGSEGV: c_int = 11;
/// SA_SIGINFO and SA_ONSTACK.
const FLAGS: c_int = 0x4 | 0x0800_0000;
const DEFAULT: Action = Action { handler: 0, mask: [0; 16], flags: 0, restorer: 0 };

type Handler = extern "C" fn(c_int, *const c_void, *const c_void);
/// The handler of Rust's runtime, which reports stack overflows.
static mut PREVIOUS: Action = DEFAULT;

pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let action = Action { handler: handle as *const () as usize, flags: FLAGS, ..DEFAULT };
        // SAFETY: `handle` has the type that SA_SIGINFO requires.
        unsafe {
            sigaction(SIGSEGV, &action, &raw mut PREVIOUS);
            sigaction(SIGFPE, &action, ptr::null_mut());
        }
    });
}

extern "C" fn handle(signal: c_int, info: *const c_void, context: *const c_void) {
    // SAFETY: `si_addr` of x86-64 Linux.
    let address = unsafe { *info.cast::<usize>().add(2) };
    let doing = DOING.get();
    let mut line = LineBuffer { text: [0; 400], length: 0 };
    let start = "CUDA stand-in: ";
    let _ = match (signal, doing, memory::accessed(address)) {
        (SIGFPE, Some(kernel), _) => writeln!(line, "{start}{kernel} divides an integer by zero"),
        (SIGSEGV, Some(doing), Some(address)) => writeln!(
            line,
            "{start}{doing} accesses device memory at {address:#x}, which is not allocated: out of bounds or freed"
        ),
        (SIGSEGV, None, Some(address)) => {
            writeln!(line, "{start}the host accesses device memory at {address:#x}")
        }
        _ => Ok(()),
    };
    // SAFETY: the buffer has this length. The access is repeated after the return, with the previous handler.
    unsafe {
        write(2, line.text.as_ptr().cast(), line.length);
        if line.length == 0 && signal == SIGSEGV && PREVIOUS.handler > 1 {
            mem::transmute::<usize, Handler>(PREVIOUS.handler)(signal, info, context);
        } else {
            sigaction(signal, &DEFAULT, ptr::null_mut());
        }
    }
}

/// A line without heap allocation, which signal handlers must not use.
struct LineBuffer {
    text: [u8; 400],
    length: usize,
}

impl Write for LineBuffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let length = text.len().min(self.text.len() - self.length);
        self.text[self.length..self.length + length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
