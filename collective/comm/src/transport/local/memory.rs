//! Memory that the ranks of one machine share.

use crate::{Error, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::{
    fs::File,
    io,
    ptr::{self, NonNull},
};

/// Zeroed, page-aligned memory, mapped until dropped.
#[derive(Debug)]
pub struct Memory {
    base: NonNull<u8>,
    len: usize,
}

impl Memory {
    /// Maps `len` bytes, at least a page: of `file`, which cannot shrink, or without one new memory of this process.
    ///
    /// # Errors
    /// [`Error::Io`] if the system refuses the memory.
    pub fn map(file: Option<&File>, len: usize) -> Result<Self> {
        let failed = |e: io::Error| Error::io(format!("mapping {len} bytes of shared memory"), &e);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses.
        let base = unsafe {
            match file {
                Some(file) => mmap(ptr::null_mut(), len, protection, MapFlags::SHARED, file, 0),
                None => mmap_anonymous(ptr::null_mut(), len, protection, MapFlags::PRIVATE),
            }
        };
        let base = base.map_err(|e| failed(e.into()))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| failed(io::ErrorKind::InvalidData.into()))?;
        Ok(Memory { base, len })
    }

    pub fn base(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    pub fn len(&self) -> usize {
        self.len
    }
}

// SAFETY: an address; who may read and write there is `LocalRank`'s business.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the address and length of the mapping, which nothing uses any more. An error leaves it mapped.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}
