//! Faults, properties and counts that a test requests in environment variables named `CUDA_STAND_IN_…`.
//!
//! | variable | meaning |
//! |---|---|
//! | `DEVICES` | number of devices (1) |
//! | `DRIVER` | version of the driver, such as 12040 (13000) |
//! | `COMPUTE_CAPABILITY` | such as 61 |
//! | `MULTIPROCESSORS` | number of multiprocessors (8) |
//! | `MIG` | if set, the devices are MIG instances of one GPU |
//! | `MEMORY` | bytes of a device's memory (4 GiB) |
//! | `OTHERS` | bytes of it that another program takes at the first launch |
//! | `TIMES` | milliseconds that every kernel takes, or `random`, which differs from rank to rank; without it, device time is not available |
//! | `BUSY` | milliseconds for which every kernel occupies the device (0) |
//! | `SEED` | seed of the order in which streams are executed (1), and of random times |
//! | `NVRTC` | version of NVRTC, such as 12.8 (13.0) |
//! | `TF32` | if set, matrix products and convolutions round their inputs to 10 bits of mantissa |
//! | `FAIL_COMPILE` | the call of NVRTC's compiler, from 1, that fails |
//! | `FAIL_KERNEL` | beginning of a name; the first kernel with such a name cannot be compiled |
//! | `BAD_LOG` | the call of NVRTC's compiler, from 1, that fails with a log on which CubeCL panics |
//! | `FAIL_MODULE` | the call of that kind, from 1, that fails |
//! | `FAIL_LAUNCH` | the launch, from 1, that fails and loses the device |
//! | `FAIL_ALLOC` | the first allocation of device memory, from 1, that fails; all later ones fail, too |
//! | `LOST_AT` | the operation, from 1, at which the device is lost |
//! | `IGNORE_WAITS` | `stream` or `context`: ignores such waits for events, to show that tests detect it |
//! | `NO_CONTEXT_EVENTS` | if set, the driver refuses to record events of contexts |
//! | `COUNTS` | file for the counts, written at exit, with the process id appended |
//! | `SOURCES` | folder for kernels as CUDA C++; only the probe is compiled and executed |
//! | `NVRTC_LIBRARY` | NVIDIA's NVRTC, which compiles the kernels in `SOURCES`; a file `.txt` beside each has the seconds and the log |
//! | `KERNELS` | file for the time of each kernel, written like `COUNTS` |
//!
//! The NVRTC stand-in writes its count `programs` to a separate file. `synchronisations` are waits for work for which
//! there was no earlier wait, and `drains` are those without work queued behind it. `cache:FOLDER` is `CUDA_CACHE_PATH`.
//!
//! Compiled with `--cfg cuda_12_0`, the libcuda stand-in lacks the functions that are newer than CUDA 12.0.

use std::{
    collections::BTreeMap,
    env, fs,
    sync::{Mutex, MutexGuard, Once, OnceLock, PoisonError},
};

pub fn setting(name: &str) -> Option<u64> {
    env::var(format!("CUDA_STAND_IN_{name}")).ok()?.parse().ok()
}

/// Whether kernels are collected and not executed.
///
/// Timing then works, so that CubeCL generates all kernels among which it chooses, and memory is zero.
pub fn collects_sources() -> bool {
    static COLLECTS: OnceLock<bool> = OnceLock::new();
    *COLLECTS.get_or_init(|| env::var_os("CUDA_STAND_IN_SOURCES").is_some())
}

static COUNTS: Mutex<BTreeMap<String, u64>> = Mutex::new(BTreeMap::new());
static SECONDS: Mutex<BTreeMap<String, (u64, f64)>> = Mutex::new(BTreeMap::new());

pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds one to the count `what` and returns it.
pub fn count(what: &str) -> u64 {
    add(what, 1)
}

/// Adds `more` to the count `what` and returns it.
pub fn add(what: &str, more: u64) -> u64 {
    static AT_EXIT: Once = Once::new();
    AT_EXIT.call_once(|| {
        // SAFETY: `report` is a function of this library, which is never unloaded.
        unsafe { atexit(report) };
    });
    let mut counts = lock(&COUNTS);
    let number = counts.entry(what.into()).or_default();
    *number += more;
    *number
}

/// Sets the count `mark` to the present count `what`.
pub fn mark(what: &str, mark: &str) {
    let number = add(what, 0);
    lock(&COUNTS).insert(mark.into(), number);
}

/// Whether this call fails: the requested one and all later ones.
pub fn fails_from(which: &str) -> bool {
    setting(which).is_some_and(|first| count(which) >= first)
}

/// Whether this call is the one that fails.
pub fn fails(which: &str) -> bool {
    setting(which).is_some_and(|wanted| count(which) == wanted)
}

/// Adds to a kernel's time.
pub fn spent(kernel: &str, seconds: f64) {
    let mut all = lock(&SECONDS);
    let entry = all.entry(kernel.into()).or_default();
    *entry = (entry.0 + 1, entry.1 + seconds);
}

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> i32;
}

extern "C" fn report() {
    let write = |name: &str, text: String| {
        if let Ok(path) = env::var(format!("CUDA_STAND_IN_{name}")) {
            let _ = fs::write(format!("{path}.{}", std::process::id()), text);
        }
    };
    write("COUNTS", lock(&COUNTS).iter().map(|(what, number)| format!("{what} {number}\n")).collect());
    let mut kernels: Vec<_> = lock(&SECONDS).clone().into_iter().collect();
    kernels.sort_by(|one, other| other.1.1.total_cmp(&one.1.1));
    let line = |(name, (calls, seconds)): (String, (u64, f64))| format!("{seconds:9.3} s {calls:6} {name}\n");
    write("KERNELS", kernels.into_iter().map(line).collect());
}
