//! What all fuzz targets share: a property of the engine, and a bound on the memory it may take
//! for an input, however long the input says that it is.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

pub use collective;
pub use libfuzzer_sys;

/// Bytes that any input may take, and how many more for each of its own. The dearest of them make
/// a number of 8 bytes from two, and a property keeps several copies of what it has read.
const ANY: usize = 256 << 10;
const EACH: usize = 128;

/// Defines a target that checks the function of this name in `collective::fuzz`.
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::bounded(bytes, $crate::collective::fuzz::$property)
        });
    };
}

/// The system's allocator, counting.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: hands everything to `System`, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Checks `property` of `bytes` and how much memory that took at most, at one time.
pub fn bounded(bytes: &[u8], property: fn(&[u8])) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    property(bytes);
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= ANY + EACH * bytes.len(), "{} bytes of input took {taken} bytes", bytes.len());
}
