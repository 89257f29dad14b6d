//! A stand-in for libcuda (`libcuda.so.1`) that runs CubeCL's kernels on the CPU.
//!
//! [`nvrtc.rs`](nvrtc.rs) replaces libnvrtc; CubeCL's CUDA C++ is compiled with g++ against `cuda_on_cpu.h`, and this
//! library loads the result.
//!
//! One thread executes all streams in random order, constrained only by events and synchronisation, so that a missing
//! dependency between streams gives a wrong result (`stream.rs`). Device memory is inaccessible to the host,
//! allocations end at a guard page, and freed memory is never reused (`memory.rs`). A thread block runs as fibers
//! (`fiber.rs`). `settings.rs` describes the faults that can be injected.
//!
//! The tests build it with plain `rustc` as a cdylib. It implements the functions that cudarc, CubeCL and this project
//! call, as documented in the CUDA driver API reference.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

mod event;
mod fault;
mod fiber;
mod kernel;
mod memory;
mod overlap;
mod pages;
mod settings;
mod stream;

use settings::{count, setting};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub type Status = c_int;
pub const SUCCESS: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NO_DEVICE: Status = 100;
pub const INVALID_IMAGE: Status = 200;
pub const NOT_FOUND: Status = 500;
pub const NOT_READY: Status = 600;
pub const ILLEGAL_ADDRESS: Status = 700;
pub const LAUNCH_FAILED: Status = 719;
pub const NOT_SUPPORTED: Status = 801;

const MEMORY: u64 = 4 << 30;
/// Offset of the handle of a primary context from its device's number.
const CONTEXT: usize = 0x1000;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    unsafe { *version = setting("DRIVER").map_or(13_000, |version| version as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(devices: *mut c_int) -> Status {
    unsafe { *devices = device_count() };
    SUCCESS
}

fn device_count() -> c_int {
    let all = setting("DEVICES").unwrap_or(1) as c_int;
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => visible.split(',').filter(|index| !index.trim().is_empty()).count() as c_int,
        Err(_) => all,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    if !(0..device_count()).contains(&ordinal) {
        return 101;
    }
    unsafe { *device = ordinal };
    SUCCESS
}

/// # Safety
/// `to` has room for `length` bytes.
unsafe fn write_text(to: *mut c_char, length: c_int, text: &str) {
    let length = (length as usize - 1).min(text.len());
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), to, length);
        *to.add(length) = 0;
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> Status {
    unsafe { write_text(name, length, "CPU stand-in for a GPU") };
    SUCCESS
}

fn total_memory() -> usize {
    setting("MEMORY").unwrap_or(MEMORY) as usize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Status {
    unsafe { *bytes = total_memory() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    unsafe {
        *total = total_memory();
        *free = total_memory().saturating_sub(memory::allocated());
    }
    SUCCESS
}

/// The attributes that CubeCL reads, by their numbers in cuda.h; 1 for all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> Status {
    let capability = setting("COMPUTE_CAPABILITY").unwrap_or(61) as c_int;
    let found = match attribute {
        1..=3 => 1024,   // threads per block, in all and along x and y
        4 => 64,         // along z
        5 => c_int::MAX, // blocks along x
        6 | 7 => 65_535, // along y and z
        8 => 49_152,     // shared memory per block
        97 => match capability {
            0..=69 => 49_152,
            70..=79 => 98_304,
            80..=89 => 166_912,
            _ => 232_448,
        }, // the same, for kernels that ask for more
        10 => 32,        // warp size
        16 => 8,         // multiprocessors
        75 => capability / 10,
        76 => capability % 10,
        _ => 1,
    };
    unsafe { *value = found };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut u8, device: c_int) -> Status {
    unsafe { std::ptr::write_bytes(uuid, device as u8 + 1, 16) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, length: c_int, device: c_int) -> Status {
    unsafe { write_text(to, length, &format!("0000:{:02x}:00.0", device + 1)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Status {
    unsafe { *context = CONTEXT + device as usize };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> Status {
    stream::CURRENT.set(context);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> Status {
    unsafe { *context = stream::CURRENT.get() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Status {
    unsafe { (*least, *greatest) = (0, -5) };
    SUCCESS
}

/// Kernels with tensor maps are not executed.
#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeTiled() -> Status {
    if settings::collects_sources() { SUCCESS } else { INVALID_VALUE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuTensorMapEncodeIm2col() -> Status {
    cuTensorMapEncodeTiled()
}

fn text_of(status: Status) -> (&'static CStr, &'static CStr) {
    match status {
        SUCCESS => (c"CUDA_SUCCESS", c"no error"),
        INVALID_VALUE => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        OUT_OF_MEMORY => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        NO_DEVICE => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        INVALID_IMAGE => (c"CUDA_ERROR_INVALID_IMAGE", c"device kernel image is invalid"),
        NOT_FOUND => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        NOT_READY => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        ILLEGAL_ADDRESS => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        LAUNCH_FAILED => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        NOT_SUPPORTED => (c"CUDA_ERROR_NOT_SUPPORTED", c"operation not supported"),
        _ => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(status: Status, name: *mut *const c_char) -> Status {
    unsafe { *name = text_of(status).0.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(status: Status, text: *mut *const c_char) -> Status {
    unsafe { *text = text_of(status).1.as_ptr() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) -> Status {
    if settings::fails("FAIL_MODULE") {
        return INVALID_IMAGE;
    }
    count("modules");
    match kernel::Module::new(unsafe { CStr::from_ptr(image) }) {
        Some(found) => unsafe { *module = Box::into_raw(Box::new(found)).cast() },
        None => return INVALID_IMAGE,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(
    function: *mut *const c_void,
    module: *const kernel::Module,
    name: *const c_char,
) -> Status {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    unsafe { *function = (*module).function(&name).cast() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_module: *const kernel::Module) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuFuncSetAttribute(_function: *const c_void, _attribute: c_int, _value: c_int) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: *const kernel::Function,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    stream: usize,
    params: *const *const c_void,
    _extra: *const c_void,
) -> Status {
    let function: &'static kernel::Function = unsafe { &*function };
    if settings::collects_sources() && !function.is_probe() {
        count("launches");
        return stream::push(stream, stream::Operation::Nothing);
    }
    if shared as usize > kernel::SHARED_MEMORY || bx * by * bz > 1024 {
        return INVALID_VALUE;
    }
    if settings::fails("FAIL_LAUNCH") {
        // As on a GPU, every later call fails.
        stream::lose();
        return LAUNCH_FAILED;
    }
    count("launches");
    match unsafe { function.launch([gx, gy, gz], [bx, by, bz], params) } {
        Some(launch) => stream::push(stream, stream::Operation::Launch(launch)),
        None => INVALID_IMAGE,
    }
}
