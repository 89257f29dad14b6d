//! NCCL operations on a stream of the libcuda stand-in, if that is loaded.
//!
//! Only the device's thread can access device memory, in stream order. Inputs are copied to the host when the stream
//! reaches the operation, and outputs are copied back when the communicator's thread has completed it.

use super::{Operation, Queued, Shared};
use crate::numbers;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

type Poll = unsafe extern "C" fn(*mut c_void) -> c_int;
type Push = unsafe extern "C" fn(usize, Poll, usize) -> c_int;

unsafe extern "C" {
    fn dlopen(path: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
}
/// RTLD_LAZY and RTLD_NOLOAD.
const IF_LOADED: c_int = 1 | 4;

/// The libcuda stand-in's entry points for other libraries.
struct Driver {
    push: Push,
    device: unsafe extern "C" fn() -> c_int,
    stream_device: unsafe extern "C" fn(usize) -> c_int,
    /// Where the device's thread accesses an address.
    memory: unsafe extern "C" fn(usize) -> usize,
}

fn driver() -> Option<&'static Driver> {
    static FOUND: OnceLock<Option<Driver>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        // SAFETY: the symbols have these types in the stand-in.
        unsafe {
            let driver = dlopen(c"libcuda.so.1".as_ptr(), IF_LOADED);
            let symbol = |name: &CStr| Some(dlsym(driver, name.as_ptr())).filter(|found| !found.is_null());
            (!driver.is_null()).then_some(())?;
            Some(Driver {
                push: std::mem::transmute::<*mut c_void, Push>(symbol(c"cudaStandInPush")?),
                device: std::mem::transmute::<*mut c_void, _>(symbol(c"cudaStandInDevice")?),
                stream_device: std::mem::transmute::<*mut c_void, _>(symbol(c"cudaStandInStreamDevice")?),
                memory: std::mem::transmute::<*mut c_void, _>(symbol(c"cudaStandInMemory")?),
            })
        }
    });
    found.as_ref()
}

pub fn push() -> Option<Push> {
    driver().map(|driver| driver.push)
}

/// The calling thread's device.
pub fn current() -> Option<c_int> {
    driver().map(|driver| unsafe { (driver.device)() })
}

pub fn of_stream(stream: usize) -> Option<c_int> {
    driver().map(|driver| unsafe { (driver.stream_device)(stream) })
}

/// Where the device's thread accesses an address.
fn of_device(address: usize) -> usize {
    driver().map_or(address, |driver| unsafe { (driver.memory)(address) })
}

/// An operation that is enqueued on a stream.
struct Staged {
    comm: Shared,
    stream: usize,
    /// The operation on device memory.
    device: Operation,
    /// Its input and output buffers on the host.
    host: (Vec<u8>, Vec<u8>),
    begun: bool,
    done: &'static AtomicBool,
}

impl Staged {
    /// Bytes that the operation reads and writes.
    fn sizes(&self) -> (usize, usize) {
        let one = self.device.count * numbers::size(self.device.dtype);
        let all = one * self.comm.size as usize;
        match self.device.name {
            "AllGather" => (one, all),
            "ReduceScatter" => (all, one),
            _ => (one, one),
        }
    }

    fn begin(&mut self) {
        let (input, output) = self.sizes();
        // Bytes that an operation does not write keep their value.
        self.host = unsafe { (copy(self.device.send, input), copy(self.device.recv, output)) };
        let (send, recv) = (self.host.0.as_ptr() as usize, self.host.1.as_mut_ptr() as usize);
        let operation = Operation { send, recv, ..self.device.clone() };
        let queued = Queued { stream: self.stream, operation, done: Some(self.done) };
        // The operations of an aborted communicator never complete.
        if let Some(queue) = self.comm.queue.lock().unwrap().as_ref() {
            let _ = queue.send(queued);
        }
    }

    fn end(&self) {
        let (output, to) = (&self.host.1, of_device(self.device.recv) as *mut u8);
        unsafe { std::ptr::copy_nonoverlapping(output.as_ptr(), to, output.len()) };
    }
}

/// A copy of device memory.
unsafe fn copy(address: usize, length: usize) -> Vec<u8> {
    if length == 0 {
        Vec::new()
    } else {
        unsafe { std::slice::from_raw_parts(of_device(address) as *const u8, length) }.to_vec()
    }
}

unsafe extern "C" fn poll(staged: *mut c_void) -> c_int {
    let state = unsafe { &mut *staged.cast::<Staged>() };
    if !state.begun {
        state.begun = true;
        state.begin();
        return 0;
    }
    let aborted = state.comm.aborted.load(SeqCst);
    if !state.done.load(SeqCst) {
        // The communicator's thread may still use the buffers of an aborted operation, so they are not freed.
        return aborted.into();
    }
    if !aborted {
        state.end();
    }
    drop(unsafe { Box::from_raw(staged.cast::<Staged>()) });
    1
}

/// Enqueues an operation on a stream of the libcuda stand-in.
pub fn stage(push: Push, comm: Shared, stream: usize, device: Operation) -> c_int {
    let done = Box::leak(Box::new(AtomicBool::new(false)));
    let staged = Box::new(Staged { comm, stream, device, host: Default::default(), begun: false, done });
    unsafe { push(stream, poll, Box::into_raw(staged) as usize) }
}
