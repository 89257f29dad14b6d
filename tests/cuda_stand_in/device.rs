//! Properties of the devices, and the limits of their launches.

use crate::{
    INVALID_DEVICE, SUCCESS, Status, context, memory,
    settings::{self, setting},
};
use std::ffi::{c_char, c_int};

const MEMORY: u64 = 4 << 30;
/// Largest block, along each axis and in all.
pub const BLOCK: [u32; 3] = [1024, 1024, 64];
pub const THREADS: u32 = 1024;
/// Largest grid along each axis.
pub const GRID: [u32; 3] = [c_int::MAX as u32, 65_535, 65_535];
/// Shared memory of a block in bytes, for kernels that do not ask for more.
pub const SHARED: usize = 49_152;

/// Shared memory of a block in bytes, for kernels that ask for it.
pub fn most_shared() -> usize {
    match capability() {
        ..70 => SHARED,
        75 => 65_536,
        70..80 => 98_304,
        80 | 87 => 166_912,
        86 | 89 | 120.. => 101_376,
        _ => 232_448,
    }
}

fn capability() -> c_int {
    setting("COMPUTE_CAPABILITY").unwrap_or(61) as c_int
}

pub fn total_memory() -> usize {
    setting("MEMORY").unwrap_or(MEMORY) as usize
}

/// [`total_memory`] without that of other programs.
pub fn available() -> usize {
    let others = setting("OTHERS").filter(|_| settings::add("launches", 0) > 0);
    total_memory().saturating_sub(others.unwrap_or(0) as usize)
}

/// The visible devices by their numbers on the machine.
fn visible() -> Vec<u8> {
    let all = setting("DEVICES").unwrap_or(1) as u8;
    match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(visible) => visible.split(',').map_while(|index| index.trim().parse().ok()).collect(),
        Err(_) => (0..all).collect(),
    }
}

/// Number on the machine of a visible device.
pub fn number(device: usize) -> Option<u8> {
    visible().get(device).copied()
}

pub fn count() -> usize {
    visible().len()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(devices: *mut c_int) -> Status {
    unsafe { *devices = count() as c_int };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Status {
    if !(0..count() as c_int).contains(&ordinal) {
        return INVALID_DEVICE;
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

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Status {
    unsafe { *bytes = total_memory() };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> Status {
    let context = or_return!(context::current("cuMemGetInfo"));
    unsafe {
        *total = total_memory();
        *free = available().saturating_sub(memory::allocated(context));
    }
    SUCCESS
}

/// The attributes that CubeCL reads, by their numbers in cuda.h; 1 for all others.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) -> Status {
    let found = match attribute {
        1 => THREADS as c_int,
        2..=4 => BLOCK[attribute as usize - 2] as c_int,
        5..=7 => GRID[attribute as usize - 5] as c_int,
        8 => SHARED as c_int,
        10 => 32, // warp size
        16 => setting("MULTIPROCESSORS").unwrap_or(8) as c_int,
        75 => capability() / 10,
        76 => capability() % 10,
        97 => most_shared() as c_int,
        _ => 1,
    };
    unsafe { *value = found };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid(uuid: *mut u8, device: c_int) -> Status {
    unsafe { cuDeviceGetUuid_v2(uuid, device) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut u8, device: c_int) -> Status {
    let Some(number) = number(device as usize) else { return INVALID_DEVICE };
    unsafe { std::ptr::write_bytes(uuid, number + 1, 16) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(to: *mut c_char, length: c_int, device: c_int) -> Status {
    // MIG instances of one GPU have its address.
    let device = if setting("MIG").is_some() { 0 } else { device };
    let Some(number) = number(device as usize) else { return INVALID_DEVICE };
    unsafe { write_text(to, length, &format!("0000:{:02x}:00.0", number + 1)) };
    SUCCESS
}
