//! The used part of NCCL's C interface as of NCCL 2.14: types, constants and functions loaded at run time.
//!
//! Source: `nccl.h` of NCCL. Later versions accept this version's structures, which contain their size.

use libloading::Library;
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_void};

/// `ncclResult_t`
pub(super) type Code = c_int;
/// `ncclComm_t`
pub(super) type Comm = *mut c_void;
/// `cudaStream_t`, which is the driver's `CUstream`.
pub(super) type RawStream = *mut c_void;

pub(super) const SUCCESS: Code = 0;
pub(super) const REMOTE_ERROR: Code = 6;
pub(super) const IN_PROGRESS: Code = 7;

/// `ncclUniqueId`: the id that all ranks of a communicator share, of `NCCL_UNIQUE_ID_BYTES`.
#[derive(Clone, Copy, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct UniqueId([[u8; 32]; 4]);

/// `ncclConfig_t` of NCCL 2.14, the first that has one.
#[repr(C)]
pub(super) struct Config {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
}

impl Config {
    /// A call returns when its work is on the stream.
    pub fn blocking() -> Self {
        Config { size: size_of::<Config>(), magic: 0xcafe_beef, version: 21_400, blocking: 1 }
    }
}

macro_rules! table {
    ($($field:ident = $symbol:literal: fn($($arg:ty),*) -> $ret:ty;)*) => {
        /// The functions.
        #[derive(Debug)]
        pub(super) struct Api {
            $(pub $field: unsafe extern "C" fn($($arg),*) -> $ret,)*
        }

        impl Api {
            /// Looks up all functions.
            ///
            /// # Errors
            /// Naming the first that is missing.
            ///
            /// # Safety
            /// The library must be NCCL, or behave like it, and must stay loaded.
            pub unsafe fn load(library: &Library) -> Result<Self, String> {
                // SAFETY: the types are those of nccl.h.
                unsafe {
                    Ok(Api { $($field: *library
                        .get(concat!($symbol, "\0").as_bytes())
                        .map_err(|_| format!("it has no {}", $symbol))?,)* })
                }
            }
        }
    };
}

table! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> Code;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Code;
    comm_init_rank_config = "ncclCommInitRankConfig": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
    comm_get_async_error = "ncclCommGetAsyncError": fn(Comm, *mut Code) -> Code;
    comm_finalize = "ncclCommFinalize": fn(Comm) -> Code;
    comm_destroy = "ncclCommDestroy": fn(Comm) -> Code;
    comm_abort = "ncclCommAbort": fn(Comm) -> Code;
    get_error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
    get_last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
    all_reduce = "ncclAllReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> Code;
    reduce = "ncclReduce": fn(*const c_void, *mut c_void, usize, c_int, c_int, c_int, Comm, RawStream) -> Code;
    broadcast = "ncclBroadcast": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> Code;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, c_int, Comm, RawStream) -> Code;
    reduce_scatter = "ncclReduceScatter": fn(*const c_void, *mut c_void, usize, c_int, c_int, Comm, RawStream) -> Code;
}
