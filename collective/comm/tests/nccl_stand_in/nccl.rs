//! A stand-in for libnccl for tests without a GPU, with the functions that the transport uses, on host memory.
//!
//! Ranks, in threads or processes, meet in a folder that the unique id names. Each communicator executes its work in
//! order on its own thread, as on a stream. The tests compile it with plain `rustc`; each copy of the file is a
//! library with its own settings. It implements only the documented behaviour of NCCL.
#![allow(non_snake_case, clippy::missing_safety_doc, clippy::too_many_arguments)]

#[path = "device.rs"]
mod device;
#[path = "numbers.rs"]
mod numbers;
#[path = "operations.rs"]
mod operations;
#[path = "settings.rs"]
mod settings;
#[path = "work.rs"]
mod work;

use settings::{note, pending, setting};
use std::ffi::{c_char, c_int, c_void};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread;

const SUCCESS: c_int = 0;
const INTERNAL_ERROR: c_int = 3;
const INVALID_ARGUMENT: c_int = 4;
const INVALID_USAGE: c_int = 5;
const REMOTE_ERROR: c_int = 6;
const IN_PROGRESS: c_int = 7;

struct Comm {
    rank: c_int,
    size: c_int,
    /// Its device of the libcuda stand-in, if that is loaded: the current one when it was created.
    device: Option<c_int>,
    state: AtomicI32,
    aborted: AtomicBool,
    folder: PathBuf,
    sequence: AtomicU64,
    queue: Mutex<Option<Sender<Queued>>>,
    /// Number of calls that enqueued work.
    calls: AtomicU64,
}

/// An operation on a stream.
struct Queued {
    stream: usize,
    operation: Operation,
    /// Set when it is complete, for a stream of the libcuda stand-in.
    done: Option<&'static AtomicBool>,
}

type Shared = Arc<Comm>;

#[derive(Clone)]
struct Operation {
    name: &'static str,
    send: usize,
    recv: usize,
    count: usize,
    dtype: c_int,
    op: c_int,
    root: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId([u8; 128]);

#[repr(C)]
pub struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> c_int {
    unsafe { *version = setting("version", -1).map_or(22105, |v| v as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> c_int {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, SeqCst);
    // Every copy of this library has its own counter.
    let own = &raw const NEXT as usize;
    let folder = std::env::temp_dir().join(format!("nccl-{}-{own:x}-{number}", std::process::id()));
    let name = folder.as_os_str().as_encoded_bytes();
    if fs::create_dir_all(&folder).is_err() || name.len() >= 128 {
        return 2;
    }
    let mut bytes = [0; 128];
    bytes[..name.len()].copy_from_slice(name);
    unsafe { *id = UniqueId(bytes) };
    note("GetUniqueId".into());
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRankConfig(
    out: *mut *mut c_void,
    size: c_int,
    id: UniqueId,
    rank: c_int,
    config: *mut Config,
) -> c_int {
    let config = unsafe { &*config };
    let known = config.magic == 0xcafebeef && config.size == 24 && config.version == 21400;
    // The transport uses blocking communicators only.
    if !known || config.blocking != 1 || rank >= size {
        return INVALID_ARGUMENT;
    }
    let end = id.0.iter().position(|b| *b == 0).unwrap_or(128);
    let folder = PathBuf::from(String::from_utf8_lossy(&id.0[..end]).into_owned());
    let (queue, waiting) = channel::<Queued>();
    let comm = Arc::new(Comm {
        rank,
        size,
        device: device::current(),
        state: AtomicI32::new(IN_PROGRESS),
        aborted: AtomicBool::new(false),
        folder,
        sequence: AtomicU64::new(0),
        queue: Mutex::new(Some(queue)),
        calls: AtomicU64::new(0),
    });
    note(format!("Init {rank}/{size}"));
    let worker = comm.clone();
    thread::spawn(move || {
        if !worker.join() {
            return;
        }
        worker.state.store(SUCCESS, SeqCst);
        for Queued { stream, operation, done } in waiting {
            match worker.perform(&operation) {
                Ok(()) => {
                    pending(stream, -1);
                    if let Some(done) = done {
                        done.store(true, SeqCst);
                    }
                }
                // The device never completes it, unless it is aborted.
                Err(None) => {}
                Err(Some(code)) => worker.state.store(code, SeqCst),
            }
            if worker.aborted.load(SeqCst) {
                pending(stream, -1);
            }
        }
    });
    let code = comm.settle();
    unsafe { *out = Arc::into_raw(comm).cast_mut().cast() };
    code
}

/// The communicator, without taking ownership.
unsafe fn borrow(comm: *mut c_void) -> Shared {
    unsafe {
        Arc::increment_strong_count(comm.cast::<Comm>());
        Arc::from_raw(comm.cast::<Comm>())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommGetAsyncError(comm: *mut c_void, state: *mut c_int) -> c_int {
    unsafe { *state = borrow(comm).state.load(SeqCst) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommFinalize(comm: *mut c_void) -> c_int {
    let comm = unsafe { borrow(comm) };
    note(format!("Finalize {}", comm.rank));
    comm.state.store(IN_PROGRESS, SeqCst);
    let caller = comm.clone();
    thread::spawn(move || {
        if setting("no_finalize", comm.rank).is_some() {
            return comm.hang();
        }
        // All ranks must call it; the name differs from those of operations.
        if comm.meet("leave") {
            comm.state.store(SUCCESS, SeqCst);
        }
    });
    caller.settle()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(comm: *mut c_void) -> c_int {
    let comm = unsafe { Arc::from_raw(comm.cast::<Comm>()) };
    note(format!("Destroy {}", comm.rank));
    comm.queue.lock().unwrap().take();
    sweep(&comm.folder, comm.size);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommAbort(comm: *mut c_void) -> c_int {
    let comm = unsafe { Arc::from_raw(comm.cast::<Comm>()) };
    note(format!("Abort {}", comm.rank));
    comm.aborted.store(true, SeqCst);
    comm.queue.lock().unwrap().take();
    sweep(&comm.folder, comm.size);
    SUCCESS
}

/// The last rank that leaves removes the folder.
fn sweep(folder: &Path, size: c_int) {
    static LEAVING: Mutex<()> = Mutex::new(());
    let _one = LEAVING.lock().unwrap();
    let count = folder.join("out");
    let out = fs::read_to_string(&count).ok().and_then(|n| n.parse::<c_int>().ok()).unwrap_or(0) + 1;
    let _ = fs::write(&count, out.to_string());
    if out >= size {
        let _ = fs::remove_dir_all(folder);
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetErrorString(code: c_int) -> *const c_char {
    let text = match code {
        SUCCESS => c"no error",
        INTERNAL_ERROR => c"internal error - please report this issue to the NCCL developers",
        INVALID_ARGUMENT => c"invalid argument",
        INVALID_USAGE => c"invalid usage",
        REMOTE_ERROR => c"remote process exited or there was a network error",
        IN_PROGRESS => c"NCCL operation in progress",
        _ => c"unknown result code",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGetLastError(_comm: *mut c_void) -> *const c_char {
    c"the stand-in was told to".as_ptr()
}
