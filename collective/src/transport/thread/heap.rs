//! Memory that threads of one process share for small calls.

use crate::{Error, Result, transport::local::region::Memory};
use std::{
    alloc::{Layout, alloc_zeroed, dealloc},
    ptr::NonNull,
};

/// Memory of this process.
#[derive(Debug)]
pub struct Heap {
    start: NonNull<u8>,
    len: usize,
}

/// Alignment that [`Memory`] requires.
const PAGE: usize = 4096;

impl Heap {
    /// Allocates `len` zeroed bytes.
    ///
    /// # Errors
    /// [`Error::Invalid`] if there is not enough memory.
    pub fn new(len: usize) -> Result<Self> {
        // SAFETY: not of size zero.
        match NonNull::new(unsafe { alloc_zeroed(Self::layout(len)?) }) {
            Some(start) => Ok(Heap { start, len }),
            None => Err(Error::Invalid(format!("out of memory: {len} bytes for a group of threads"))),
        }
    }

    /// Includes space for alignment: an aligned allocation would not be zeroed lazily.
    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len + PAGE, 16).map_err(|e| Error::Invalid(format!("{len} bytes: {e}")))
    }
}

// SAFETY: aligned within the allocation, which lives as long as this.
unsafe impl Memory for Heap {
    const NAME: &'static str = "thread";

    fn base(&self) -> *mut u8 {
        let start = self.start.as_ptr();
        start.wrapping_add(start.align_offset(PAGE))
    }

    fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address; who may read and write there is `LocalRank`'s business.
unsafe impl Send for Heap {}
// SAFETY: as above.
unsafe impl Sync for Heap {}

impl Drop for Heap {
    fn drop(&mut self) {
        if let Ok(layout) = Self::layout(self.len) {
            // SAFETY: allocated with this layout.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
