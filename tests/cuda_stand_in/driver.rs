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

/// The value of a result, or a return from the calling function with the status.
macro_rules! or_return {
    ($result:expr) => {
        match $result {
            Ok(value) => value,
            Err(status) => return status,
        }
    };
}

mod compiler;
mod context;
mod copy;
mod device;
mod event;
mod executor;
mod fault;
mod fiber;
mod kernel;
mod launch;
mod memory;
mod overlap;
mod pages;
mod settings;
mod stream;

use settings::setting;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

pub type Status = c_int;
pub const SUCCESS: Status = 0;
pub const INVALID_VALUE: Status = 1;
pub const OUT_OF_MEMORY: Status = 2;
pub const NO_DEVICE: Status = 100;
pub const INVALID_DEVICE: Status = 101;
pub const INVALID_IMAGE: Status = 200;
pub const INVALID_CONTEXT: Status = 201;
pub const INVALID_HANDLE: Status = 400;
pub const NOT_FOUND: Status = 500;
pub const NOT_READY: Status = 600;
pub const ILLEGAL_ADDRESS: Status = 700;
pub const LAUNCH_FAILED: Status = 719;
pub const NOT_SUPPORTED: Status = 801;

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> Status {
    if let Ok(folder) = std::env::var("CUDA_CACHE_PATH") {
        settings::count(&format!("cache:{folder}"));
    }
    SUCCESS
}

/// Returns that there is no such table. NVRTC 13.5 asks for one, and crashes if the function is missing.
#[unsafe(no_mangle)]
pub extern "C" fn cuGetExportTable(_table: *mut *const c_void, _id: *const c_void) -> Status {
    NOT_FOUND
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Status {
    unsafe { *version = setting("DRIVER").map_or(13_000, |version| version as c_int) };
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
        INVALID_DEVICE => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        INVALID_CONTEXT => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        INVALID_HANDLE => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
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
