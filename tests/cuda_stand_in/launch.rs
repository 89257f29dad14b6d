//! Modules, functions and launches, with the limits that the driver enforces.

use crate::{
    INVALID_HANDLE, INVALID_IMAGE, INVALID_VALUE, LAUNCH_FAILED, SUCCESS, Status,
    context::current,
    device, kernel,
    settings::{self, count},
    stream::{self, Operation},
};
use std::{
    ffi::{CStr, c_char, c_int, c_uint, c_void},
    sync::atomic::Ordering,
};

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`
const MOST_SHARED: c_int = 8;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut *mut c_void, image: *const c_char) -> Status {
    let context = or_return!(current("cuModuleLoadData"));
    if settings::fails("FAIL_MODULE") {
        return INVALID_IMAGE;
    }
    count("modules");
    match kernel::Module::new(unsafe { CStr::from_ptr(image) }, context) {
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
pub unsafe extern "C" fn cuFuncSetAttribute(
    function: *const kernel::Function,
    attribute: c_int,
    value: c_int,
) -> Status {
    if attribute == MOST_SHARED {
        if !(0..=device::most_shared() as c_int).contains(&value) {
            return INVALID_VALUE;
        }
        unsafe { (*function).shared.store(value as usize, Ordering::Relaxed) };
    }
    SUCCESS
}

/// Whether the driver accepts these sizes.
fn fits(function: &kernel::Function, grid: [u32; 3], block: [u32; 3], shared: usize) -> bool {
    let within = |size: [u32; 3], most: [u32; 3]| (0..3).all(|axis| (1..=most[axis]).contains(&size[axis]));
    within(grid, device::GRID)
        && within(block, device::BLOCK)
        && block.iter().product::<u32>() <= device::THREADS.min(function.most_threads())
        && shared <= function.shared.load(Ordering::Relaxed)
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
    or_return!(current("cuLaunchKernel"));
    let (stream, context) = or_return!(stream::existing(stream));
    if context != function.context {
        eprintln!("CUDA stand-in: a kernel and the stream of its launch are of different contexts");
        return INVALID_HANDLE;
    }
    if settings::collects_sources() && !function.is_probe() {
        count("launches");
        return stream::push(stream, Operation::Nothing);
    }
    if !fits(function, [gx, gy, gz], [bx, by, bz], shared as usize) {
        return INVALID_VALUE;
    }
    if settings::fails("FAIL_LAUNCH") {
        // As on a GPU, every later call fails.
        stream::lose();
        return LAUNCH_FAILED;
    }
    count("launches");
    let launch = unsafe { function.launch([gx, gy, gz], [bx, by, bz], shared as usize, params) };
    stream::push(stream, Operation::Launch(or_return!(launch)))
}
