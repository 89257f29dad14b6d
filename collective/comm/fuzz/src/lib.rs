//! Common code of the fuzz targets, which check a property of the engine and its memory use.
//!
//! Memory is bounded by the length of the input, whatever lengths the input contains.

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

pub use burn_ddp_comm;
pub use libfuzzer_sys;

/// Maximum memory in bytes of any input, and in addition for each of its bytes.
///
/// Two bytes of input may become a number of 8 bytes, and a property keeps several copies.
const ANY: usize = 256 << 10;
const EACH: usize = 128;

/// Defines a target that checks the function of this name in `burn_ddp_comm::fuzz`.
#[macro_export]
macro_rules! target {
    ($property:ident) => {
        $crate::libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
            $crate::bounded(bytes, $crate::burn_ddp_comm::fuzz::$property)
        });
    };
}

/// The system's allocator with counters.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

// SAFETY: forwards to `System`, which meets the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        PEAK.fetch_max(LIVE.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Checks `property` on `bytes`, and the peak of its memory use.
pub fn bounded(bytes: &[u8], property: fn(&[u8])) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    property(bytes);
    let taken = PEAK.load(Relaxed).saturating_sub(before);
    assert!(taken <= ANY + EACH * bytes.len(), "{} bytes of input took {taken} bytes", bytes.len());
}
