//! Configuration of the global allocator, mimalloc.

/// Makes mimalloc keep freed memory, unless `MIMALLOC_PURGE_DELAY` is set.
///
/// By default it returns freed pages to the kernel after 10 ms. A training step takes about 50 ms, so that the
/// kernel would zero the pages of its buffers in every step.
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
        // SAFETY: the function accepts any option and value. It must not run concurrently; only the main
        // thread calls it.
        unsafe { mi_option_set_default(PURGE_DELAY, NEVER) };
    }
}

/// Makes mimalloc the program's allocator if burn-ddp is built with the feature `mimalloc`; otherwise does nothing.
///
/// For the file of `main`, at most once per program.
#[cfg(feature = "mimalloc")]
#[macro_export]
macro_rules! global_allocator {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::mimalloc::MiMalloc = $crate::mimalloc::MiMalloc;
    };
}

/// Makes mimalloc the program's allocator if burn-ddp is built with the feature `mimalloc`; otherwise does nothing.
///
/// For the file of `main`, at most once per program.
#[cfg(not(feature = "mimalloc"))]
#[macro_export]
macro_rules! global_allocator {
    () => {};
}
