//! The allocator of the programs: mimalloc, told to keep what training takes again every step.

/// Keeps freed memory from now on, unless `MIMALLOC_PURGE_DELAY` says otherwise. By itself mimalloc gives
/// it back after 10 milliseconds: a step's buffers come and go in fifty, and the kernel would clear every
/// page of them before the next.
pub fn keep_memory() {
    #[cfg(feature = "mimalloc")]
    {
        use std::ffi::{c_int, c_long};
        // `mi_option_purge_delay` of mimalloc.h.
        const PURGE_DELAY: c_int = 15;
        const NEVER: c_long = -1;
        unsafe extern "C" {
            fn mi_option_set_default(option: c_int, value: c_long);
        }
        // SAFETY: the function takes any option and value. It may not run twice at a time, and only the
        // thread that begins the program calls this.
        unsafe { mi_option_set_default(PURGE_DELAY, NEVER) };
    }
}
