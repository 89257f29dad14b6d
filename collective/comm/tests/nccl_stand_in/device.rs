//! NCCL operations on a stream of the libcuda stand-in, if that is loaded.
//!
//! Only the device's thread can access device memory, in stream order. Inputs are copied to the host when the stream
//! reaches the operation, and outputs are copied back when the communicator's thread has completed it.

use super::{Batch, Operation, Shared};
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

/// Operations that are enqueued on a stream.
struct Staged {
    comm: Shared,
    stream: usize,
    /// The operations on device memory.
    device: Vec<Operation>,
    /// Input and output buffers of each on the host.
    host: Vec<(Vec<u8>, Vec<u8>)>,
    begun: bool,
    done: &'static AtomicBool,
}

impl Staged {
    /// Bytes that an operation reads and writes.
    fn sizes(&self, operation: &Operation) -> (usize, usize) {
        let (one, ranks) = (operation.count * numbers::size(operation.dtype), self.comm.size as usize);
        match operation.name {
            "Send" => (one, 0),
            "Recv" => (0, one),
            "AllGather" => (one, one * ranks),
            "ReduceScatter" => (one * ranks, one),
            _ => (one, one),
        }
    }

    fn begin(&mut self) {
        for operation in &self.device {
            let (input, output) = self.sizes(operation);
            // Bytes that an operation does not write keep their value.
            self.host.push(unsafe { (copy(operation.send, input), copy(operation.recv, output)) });
        }
        let on_host = self.device.iter().zip(&mut self.host).map(|(operation, (input, output))| Operation {
            send: input.as_ptr() as usize,
            recv: output.as_mut_ptr() as usize,
            ..operation.clone()
        });
        let batch = Batch { stream: self.stream, operations: on_host.collect(), done: Some(self.done) };
        // The operations of an aborted communicator never complete.
        if let Some(queue) = self.comm.queue.lock().unwrap().as_ref() {
            let _ = queue.send(batch);
        }
    }

    fn end(&self) {
        for (operation, (_, output)) in self.device.iter().zip(&self.host) {
            unsafe {
                std::ptr::copy_nonoverlapping(
                    output.as_ptr(),
                    of_device(operation.recv) as *mut u8,
                    output.len(),
                )
            };
        }
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

/// Enqueues operations on a stream of the libcuda stand-in.
pub fn stage(push: Push, comm: Shared, stream: usize, device: Vec<Operation>) -> c_int {
    let done = Box::leak(Box::new(AtomicBool::new(false)));
    let staged = Box::new(Staged { comm, stream, device, host: Vec::new(), begun: false, done });
    unsafe { push(stream, poll, Box::into_raw(staged) as usize) }
}
