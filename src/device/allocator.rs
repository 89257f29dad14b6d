//! Configuration of the global allocator, mimalloc, and of the process's memory.

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
        static ONCE: std::sync::Once = std::sync::Once::new();
        // SAFETY: the function accepts any option and value. It must not run concurrently.
        ONCE.call_once(|| unsafe { mi_option_set_default(PURGE_DELAY, NEVER) });
    }
}

/// Turns transparent huge pages off for this process, unless `MIMALLOC_ALLOW_THP` is set.
///
/// mimalloc asks for them. They cost a rank 16 MiB or more, and no program of this repository is faster with them
/// (`benches/results/speed-and-footprint.md`).
pub fn use_small_pages() {
    #[cfg(target_os = "linux")]
    if std::env::var_os("MIMALLOC_ALLOW_THP").is_none() {
        // SAFETY: the call only sets a flag of the process. Where it fails, huge pages stay on.
        unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) };
    }
}

#[cfg(feature = "mimalloc")]
#[doc(hidden)]
pub use mimalloc::MiMalloc as Allocator;
#[cfg(not(feature = "mimalloc"))]
#[doc(hidden)]
pub use std::alloc::System as Allocator;

/// Makes mimalloc the program's allocator if burn-ddp is built with the feature `mimalloc`, otherwise the system's.
///
/// For the file of `main`, at most once per program.
#[macro_export]
macro_rules! global_allocator {
    () => {
        #[global_allocator]
        static ALLOCATOR: $crate::device::Allocator = $crate::device::Allocator;
    };
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    #[test]
    fn huge_pages_are_turned_off() {
        super::use_small_pages();
        // The line exists since Linux 5.0.
        let status = std::fs::read_to_string("/proc/self/status").expect("the process's status");
        let enabled = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
        assert!(enabled.is_none_or(|enabled| enabled.trim() == "0"), "{enabled:?}");
    }
}
