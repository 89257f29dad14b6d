//! Injected faults of the NCCL stand-in, and the log of its calls.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;

/// Faults: name, rank (-1: all) and value.
static SETTINGS: Mutex<Vec<(String, c_int, u64)>> = Mutex::new(Vec::new());
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());
static PENDING: Mutex<Option<HashMap<usize, i64>>> = Mutex::new(None);

/// Adds a fault.
///
/// `slow_init`, `busy` and, before a call of more than 1,000,000 elements, `slow_large_call`: milliseconds. `hang_at`,
/// `error_at`, `remote_error_at` and `die_at`: number of the operation, from 1. `block_at`: number of the call, from 1,
/// that blocks until the communicator is aborted. `meet`: number of first calls that block until all ranks make theirs,
/// as NCCL's may that connect the ranks. `no_init` and `no_finalize`: never completed. `version`: the reported version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standInSet(name: *const c_char, rank: c_int, value: u64) {
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
    SETTINGS.lock().unwrap().push((name, rank, value));
}

/// The value of a fault on `rank`, from [`standInSet`] or the environment: `STAND_IN="hang_at:1=3"` for rank 1.
pub fn setting(name: &str, rank: c_int) -> Option<u64> {
    let set = SETTINGS.lock().unwrap();
    let fits = |(n, r, v): &(String, c_int, u64)| (n == name && (*r == -1 || *r == rank)).then_some(*v);
    set.iter().find_map(fits).or_else(|| {
        let text = std::env::var("STAND_IN").ok()?;
        let wanted = format!("{name}:{rank}=");
        text.split(',').find_map(|part| part.strip_prefix(&wanted)?.parse().ok())
    })
}

pub fn note(what: String) {
    LOG.lock().unwrap().push(what);
}

/// All calls of this process so far, one per line. The caller owns the text.
#[unsafe(no_mangle)]
pub extern "C" fn standInLog() -> *mut c_char {
    CString::new(LOG.lock().unwrap().join("\n")).unwrap().into_raw()
}

/// Number of operations that a stream has not completed.
#[unsafe(no_mangle)]
pub extern "C" fn standInPending(stream: *mut c_void) -> i64 {
    PENDING.lock().unwrap().get_or_insert_default().get(&(stream as usize)).copied().unwrap_or(0)
}

pub fn pending(stream: usize, change: i64) {
    *PENDING.lock().unwrap().get_or_insert_default().entry(stream).or_default() += change;
}
