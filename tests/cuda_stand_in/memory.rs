//! Device memory: one range of addresses, inaccessible to the host except while the device executes.
//!
//! Each allocation ends at a guard page. Freed pages stay inaccessible and are never reused, so that an access is a
//! segmentation fault. New memory is filled with NaN.

use crate::{
    INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status, fault,
    pages::{self, PAGE},
    settings::{collects_sources, count, fails_from, lock, mark},
    stream::{self, Operation},
};
use std::{
    collections::BTreeMap,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Size of the reserved address range.
const RANGE: usize = 256 << 30;

struct Memory {
    start: usize,
    next: usize,
    /// Sizes of the device allocations by address.
    live: BTreeMap<usize, usize>,
    /// Sizes of page-locked host memory by address.
    pinned: BTreeMap<usize, usize>,
    open: bool,
    /// How often the device had no work.
    idle: usize,
}

const ALWAYS: usize = 64;
const EVERY: usize = 16;

static MEMORY: Mutex<Memory> = Mutex::new(Memory {
    start: 0,
    next: 0,
    live: BTreeMap::new(),
    pinned: BTreeMap::new(),
    open: false,
    idle: 0,
});

impl Memory {
    fn allocate(&mut self, size: usize) -> Option<usize> {
        if self.start == 0 {
            let range = pages::reserve(RANGE)?;
            (self.start, self.next) = (range, range);
            START.store(range, Ordering::Relaxed);
            fault::install();
        }
        let pages = size.max(1).next_multiple_of(PAGE);
        if self.next + pages + PAGE > self.start + RANGE || self.used() + size > crate::total_memory() {
            return None;
        }
        // The end is at the guard page, up to an alignment of 512 bytes.
        let address = self.next + (pages - size) / 512 * 512;
        let (first, open) = (self.next, self.open);
        self.next += pages + PAGE;
        if !pages::provide(first, pages, collects_sources()) || !(open || pages::protect(first, pages, false))
        {
            return None;
        }
        self.live.insert(address, size);
        Some(address)
    }

    fn used(&self) -> usize {
        self.live.values().sum()
    }

    fn pages(address: usize, size: usize) -> (usize, usize) {
        let first = address / PAGE * PAGE;
        (first, (address + size.max(1)).next_multiple_of(PAGE) - first)
    }

    fn free(&mut self, address: usize) -> bool {
        let Some(size) = self.live.remove(&address) else { return false };
        let (first, length) = Self::pages(address, size);
        pages::discard(first, length);
        true
    }

    fn holds(map: &BTreeMap<usize, usize>, address: usize, length: usize) -> bool {
        map.range(..=address).next_back().is_some_and(|(start, size)| address + length <= start + size)
    }
}

/// Makes the memory accessible to the device's thread, or inaccessible.
///
/// After the first [`ALWAYS`] times, it is made inaccessible only every [`EVERY`]th time, because each takes
/// milliseconds. The host repeats its accesses in every training step.
pub fn open(open: bool) {
    let mut memory = lock(&MEMORY);
    if memory.open == open {
        return;
    }
    if !open {
        memory.idle += 1;
        if memory.idle > ALWAYS && !memory.idle.is_multiple_of(EVERY) {
            return;
        }
    }
    memory.open = open;
    for (address, size) in &memory.live {
        let (first, length) = Memory::pages(*address, *size);
        pages::protect(first, length, open);
    }
}

/// Start of the range of device addresses.
static START: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether the address is in the range of device addresses, allocated or not.
pub fn in_range(address: usize) -> bool {
    address.checked_sub(START.load(Ordering::Relaxed)).is_some_and(|offset| offset < RANGE)
}

/// Whether these bytes are within one allocation.
pub fn is_device(address: usize, length: usize) -> bool {
    Memory::holds(&lock(&MEMORY).live, address, length)
}

pub fn is_pinned(address: usize, length: usize) -> bool {
    Memory::holds(&lock(&MEMORY).pinned, address, length)
}

pub fn allocated() -> usize {
    lock(&MEMORY).used()
}

/// Frees memory. Called in stream order, because earlier operations may use the memory.
pub fn free_now(address: usize) {
    if !lock(&MEMORY).free(address) {
        outside("a free", address, 0);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut usize, size: usize) -> Status {
    count("allocations");
    mark("launches", "launches before the last allocation");
    if fails_from("FAIL_ALLOC") {
        return OUT_OF_MEMORY;
    }
    match lock(&MEMORY).allocate(size) {
        Some(found) => unsafe { *address = found },
        None => return OUT_OF_MEMORY,
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut usize, size: usize, _stream: usize) -> Status {
    unsafe { cuMemAlloc_v2(address, size) }
}

/// Waits for the device, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: usize) -> Status {
    match stream::synchronize_all() {
        SUCCESS if lock(&MEMORY).free(address) => SUCCESS,
        SUCCESS => outside("a free", address, 0),
        // The work of a lost device may still be in progress.
        lost => lost,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(address: usize, stream: usize) -> Status {
    stream::push(stream, Operation::Free(address))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(address: *mut usize, size: usize) -> Status {
    let memory = vec![0xff_u8; size.max(1)].leak();
    lock(&MEMORY).pinned.insert(memory.as_ptr() as usize, size);
    unsafe { *address = memory.as_mut_ptr() as usize };
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeHost(address: usize) -> Status {
    match lock(&MEMORY).pinned.remove(&address) {
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    }
}

fn outside(what: &str, address: usize, length: usize) -> Status {
    eprintln!("CUDA stand-in: {what} of {length} bytes at {address:#x} is not within one live allocation");
    INVALID_VALUE
}

/// The driver copies from pageable memory before it returns, from page-locked memory later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(
    to: usize,
    from: usize,
    length: usize,
    stream: usize,
) -> Status {
    count("uploads");
    if !is_device(to, length) {
        return outside("an upload", to, length);
    }
    if is_pinned(from, length) {
        return stream::push(stream, Operation::Copy { to, from, length });
    }
    // SAFETY: the caller passes this number of bytes.
    let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, length) }.to_vec();
    stream::push(stream, Operation::Write { to, bytes })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(
    to: usize,
    from: usize,
    length: usize,
    stream: usize,
) -> Status {
    count("downloads");
    if !is_device(from, length) {
        return outside("a download", from, length);
    }
    let status = stream::push(stream, Operation::Copy { to, from, length });
    // A copy to pageable memory is complete when the call returns.
    if is_pinned(to, length) || status != SUCCESS { status } else { stream::synchronize(stream) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: usize, from: usize, length: usize, stream: usize) -> Status {
    for address in [to, from] {
        if !is_device(address, length) {
            return outside("a copy on the device", address, length);
        }
    }
    stream::push(stream, Operation::Copy { to, from, length })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: usize, value: u8, length: usize, stream: usize) -> Status {
    if !is_device(to, length) {
        return outside("a fill", to, length);
    }
    stream::push(stream, Operation::Write { to, bytes: vec![value; length] })
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: u32,
    from_host: usize,
    from_device: usize,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: u32,
    to_host: usize,
    to_device: usize,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

const HOST: u32 = 1;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: usize) -> Status {
    let copy = unsafe { &*copy };
    let (upload, download) = (copy.from_kind == HOST, copy.to_kind == HOST);
    let from =
        if upload { copy.from_host } else { copy.from_device } + copy.from_y * copy.from_pitch + copy.from_x;
    let to = if download { copy.to_host } else { copy.to_device } + copy.to_y * copy.to_pitch + copy.to_x;
    count(if upload { "uploads" } else { "downloads" });
    for row in 0..copy.height {
        let (from, to) = (from + row * copy.from_pitch, to + row * copy.to_pitch);
        if !upload && !is_device(from, copy.width) {
            return outside("a row of a download", from, copy.width);
        }
        if !download && !is_device(to, copy.width) {
            return outside("a row of an upload", to, copy.width);
        }
        let status = if upload {
            // SAFETY: the caller passes this number of bytes per row.
            let bytes = unsafe { std::slice::from_raw_parts(from as *const u8, copy.width) }.to_vec();
            stream::push(stream, Operation::Write { to, bytes })
        } else {
            stream::push(stream, Operation::Copy { to, from, length: copy.width })
        };
        if status != SUCCESS {
            return status;
        }
    }
    if download { stream::synchronize(stream) } else { SUCCESS }
}
