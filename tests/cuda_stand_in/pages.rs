//! Pages of device memory. New ones read as NaN, although nothing has been written to them.
//!
//! CubeCL allocates pools of gigabytes, of which a test uses a few megabytes. All pages are private copies of one
//! short file, which the kernel makes at the first write to a page.

use std::ffi::{c_char, c_void};
use std::sync::OnceLock;

pub const PAGE: usize = 4096;
/// Length of the file whose contents are repeated in new memory.
const FILE: usize = 2 << 20;

unsafe extern "C" {
    fn mmap(at: *mut c_void, length: usize, access: i32, flags: i32, file: i32, offset: i64) -> *mut c_void;
    fn mprotect(at: *mut c_void, length: usize, access: i32) -> i32;
    fn memfd_create(name: *const c_char, flags: u32) -> i32;
    fn write(file: i32, bytes: *const c_void, length: usize) -> isize;
}
const NONE: i32 = 0;
const READ_WRITE: i32 = 3;
/// MAP_PRIVATE and MAP_NORESERVE.
const PRIVATE: i32 = 0x2 | 0x4000;
const FIXED: i32 = 0x10;
const ANONYMOUS: i32 = 0x20;

/// Reserves a range of inaccessible addresses.
pub fn reserve(length: usize) -> Option<usize> {
    // SAFETY: a new mapping.
    let start = unsafe { mmap(std::ptr::null_mut(), length, NONE, PRIVATE | ANONYMOUS, -1, 0) } as usize;
    (start != usize::MAX).then_some(start)
}

/// Makes reserved pages accessible, filled with zeros or with NaN. Returns whether that succeeded.
pub fn provide(first: usize, length: usize, zeros: bool) -> bool {
    if zeros {
        // SAFETY: as below.
        return unsafe { mprotect(first as *mut c_void, length, READ_WRITE) == 0 };
    }
    (0..length).step_by(FILE).all(|from| {
        let (at, part) = (first + from, FILE.min(length - from));
        // SAFETY: reserved pages, which nothing else uses.
        let mapped = unsafe { mmap(at as *mut c_void, part, READ_WRITE, PRIVATE | FIXED, not_a_number(), 0) };
        mapped as usize == at
    })
}

/// Returns the memory of pages to the system. Their addresses stay reserved.
pub fn discard(first: usize, length: usize) {
    // SAFETY: the caller's pages of the reserved range.
    unsafe { mmap(first as *mut c_void, length, NONE, PRIVATE | FIXED | ANONYMOUS, -1, 0) };
}

/// A file in memory whose bytes are all 0xff, or -1, which the caller's `mmap` refuses.
fn not_a_number() -> i32 {
    static DESCRIPTOR: OnceLock<i32> = OnceLock::new();
    *DESCRIPTOR.get_or_init(|| {
        let bytes = vec![0xff_u8; FILE];
        // SAFETY: a new file of this process, and a buffer of this length.
        unsafe {
            let file = memfd_create(c"CUDA stand-in".as_ptr(), 1); // MFD_CLOEXEC
            if write(file, bytes.as_ptr().cast(), FILE) == FILE as isize { file } else { -1 }
        }
    })
}
