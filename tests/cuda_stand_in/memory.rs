//! Device memory: one range of addresses, all of which are inaccessible to the host.
//!
//! The memory itself is in a second range, in which the device's thread accesses it: [`of_device`] translates an
//! address. Each allocation ends at a guard page. Freed pages are never reused, so that an access is a segmentation
//! fault. New memory is filled with NaN.

use crate::{
    INVALID_VALUE, OUT_OF_MEMORY, SUCCESS, Status,
    context::current,
    copy::outside,
    device, fault,
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

/// Size of each of the two ranges, of which the second follows the first.
const RANGE: usize = 256 << 30;

struct Memory {
    start: usize,
    next: usize,
    /// Sizes and contexts of the device allocations by address.
    live: BTreeMap<usize, (usize, usize)>,
    /// Sizes of page-locked host memory by address.
    pinned: BTreeMap<usize, usize>,
}

static MEMORY: Mutex<Memory> =
    Mutex::new(Memory { start: 0, next: 0, live: BTreeMap::new(), pinned: BTreeMap::new() });

impl Memory {
    fn allocate(&mut self, size: usize, context: usize) -> Option<usize> {
        if self.start == 0 {
            let range = pages::reserve(2 * RANGE)?;
            (self.start, self.next) = (range, range);
            START.store(range, Ordering::Relaxed);
            fault::install();
        }
        let pages = size.max(1).next_multiple_of(PAGE);
        if self.next + pages + PAGE > self.start + RANGE || self.used(context) + size > device::available() {
            return None;
        }
        // The end is at the guard page, up to an alignment of 512 bytes.
        let address = self.next + (pages - size) / 512 * 512;
        let first = self.next;
        self.next += pages + PAGE;
        if !pages::provide(first + RANGE, pages, collects_sources()) {
            return None;
        }
        self.live.insert(address, (size, context));
        Some(address)
    }

    fn used(&self, context: usize) -> usize {
        self.live.values().filter(|(_, owner)| *owner == context).map(|(size, _)| size).sum()
    }

    fn free(&mut self, address: usize) -> bool {
        let Some((size, _)) = self.live.remove(&address) else { return false };
        let first = address / PAGE * PAGE;
        pages::discard(first + RANGE, (address + size).next_multiple_of(PAGE) - first);
        true
    }

    /// Context of the allocation that contains these bytes.
    fn owner(&self, address: usize, length: usize) -> Option<usize> {
        let (start, (size, context)) = self.live.range(..=address).next_back()?;
        (address + length <= start + size).then_some(*context)
    }
}

/// Start of the range of device addresses.
static START: AtomicUsize = AtomicUsize::new(usize::MAX);

/// Whether the address is in the range of device addresses, allocated or not.
fn in_range(address: usize) -> bool {
    address.checked_sub(START.load(Ordering::Relaxed)).is_some_and(|offset| offset < RANGE)
}

/// Where the device's thread accesses an address; that of host memory is unchanged.
pub fn of_device(address: usize) -> usize {
    if in_range(address) { address + RANGE } else { address }
}

/// The device address that was accessed at `address`, in either range.
pub fn accessed(address: usize) -> Option<usize> {
    [Some(address), address.checked_sub(RANGE)].into_iter().flatten().find(|address| in_range(*address))
}

/// [`of_device`] for other libraries.
#[unsafe(no_mangle)]
pub extern "C" fn cudaStandInMemory(address: usize) -> usize {
    of_device(address)
}

/// Whether these bytes are within one allocation.
pub fn is_device(address: usize, length: usize) -> bool {
    owner(address, length).is_some()
}

/// Context of the allocation that contains these bytes.
pub fn owner(address: usize, length: usize) -> Option<usize> {
    lock(&MEMORY).owner(address, length)
}

pub fn is_pinned(address: usize, length: usize) -> bool {
    let memory = lock(&MEMORY);
    let found = memory.pinned.range(..=address).next_back();
    found.is_some_and(|(start, size)| address + length <= start + size)
}

pub fn allocated(context: usize) -> usize {
    lock(&MEMORY).used(context)
}

/// Frees memory. Called in stream order, because earlier operations may use the memory.
pub fn free_now(address: usize) {
    if !lock(&MEMORY).free(address) {
        outside("a free", address, 0);
    }
}

fn allocate(size: usize, context: usize) -> Result<usize, Status> {
    count("allocations");
    mark("launches", "launches before the last allocation");
    if size == 0 {
        return Err(INVALID_VALUE);
    }
    if fails_from("FAIL_ALLOC") {
        return Err(OUT_OF_MEMORY);
    }
    lock(&MEMORY).allocate(size, context).ok_or(OUT_OF_MEMORY)
}

/// Waits for the device, as the driver may do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(address: *mut usize, size: usize) -> Status {
    let allocated = current("cuMemAlloc").and_then(|context| match stream::drain(context) {
        SUCCESS => allocate(size, context),
        lost => Err(lost),
    });
    unsafe { *address = or_return!(allocated) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(address: *mut usize, size: usize, stream: usize) -> Status {
    let (_, context) = or_return!(stream::existing(stream));
    unsafe { *address = or_return!(allocate(size, context)) };
    SUCCESS
}

/// Waits for the device, as the driver does.
#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(address: usize) -> Status {
    let context = or_return!(current("cuMemFree"));
    match stream::drain(owner(address, 1).unwrap_or(context)) {
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
    or_return!(current("cuMemAllocHost"));
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
