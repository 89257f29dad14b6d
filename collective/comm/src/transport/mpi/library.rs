//! The MPI library of this process, initialised once with full thread support and finalised at a clean exit.

use crate::{Error, Result, World};
use mpi::{Threading, ffi};
use std::{
    ffi::{c_char, c_int},
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

/// Whether operations were abandoned, after which MPI cannot be finalised.
static ABANDONED: AtomicBool = AtomicBool::new(false);

/// State of MPI in this process.
#[derive(Clone, Debug)]
pub(crate) struct Library {
    pub world: World,
    /// Name of this machine according to MPI.
    pub host: String,
}

impl Library {
    /// Initialises MPI at the first call.
    ///
    /// # Errors
    /// If MPI cannot be initialised, or does not support calls from several threads.
    pub fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<Library>> = OnceLock::new();
        LIBRARY.get_or_init(start).as_ref().map_err(Clone::clone)
    }

    /// Records that an operation will never complete.
    pub fn abandon() {
        ABANDONED.store(true, Ordering::SeqCst);
    }
}

/// An error if an MPI function did not return success.
pub(super) fn check(what: &str, code: c_int) -> Result<()> {
    // MPI_SUCCESS is 0 by the standard.
    if code == 0 {
        return Ok(());
    }
    let mut text = vec![0u8; 1024];
    let mut length = 0;
    // SAFETY: the text has room for MPI_MAX_ERROR_STRING, which is at most 512 in MPICH and 256 in
    // OpenMPI.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &mut length) };
    text.truncate(length.max(0) as usize);
    Err(Error::Io { what: what.into(), reason: String::from_utf8_lossy(&text).into_owned() })
}

fn start() -> Result<Library> {
    let provided = match mpi::initialize_with_threading(Threading::Multiple) {
        Some((universe, provided)) => {
            // Dropping it would finalise MPI, which `finish` does.
            std::mem::forget(universe);
            // SAFETY: `finish` takes and returns nothing and does not unwind.
            unsafe { libc::atexit(finish) };
            provided
        }
        // Other code in this process has initialised it and will finalise it.
        None => mpi::environment::threading_support(),
    };
    if provided < Threading::Multiple {
        return Err(Error::Invalid(format!(
            "MPI offers {provided:?} threads, but transport mpi calls it from several (MPI_THREAD_MULTIPLE): use an MPI built with thread support"
        )));
    }
    let (mut rank, mut size) = (0, 0);
    // SAFETY: MPI is started; the world communicator exists from then on.
    unsafe {
        let world = ffi::RSMPI_COMM_WORLD;
        check("let MPI errors be returned", ffi::MPI_Comm_set_errhandler(world, ffi::RSMPI_ERRORS_RETURN))?;
        check("ask MPI for the rank", ffi::MPI_Comm_rank(world, &mut rank))?;
        check("ask MPI for the world size", ffi::MPI_Comm_size(world, &mut size))?;
    }
    Ok(Library {
        world: World { rank: rank as usize, size: size as usize },
        host: mpi::environment::processor_name().unwrap_or_default(),
    })
}

/// Finalises MPI when the process exits.
///
/// All ranks must do so together, which the ranks of a failed job do not: then the launcher detects a rank
/// that has exited without finalising.
extern "C" fn finish() {
    if ABANDONED.load(Ordering::SeqCst) || std::thread::panicking() {
        return;
    }
    // SAFETY: MPI was started by this process; whether it has ended is asked first.
    unsafe {
        let mut ended = 0;
        if ffi::MPI_Finalized(&mut ended) == 0 && ended == 0 {
            ffi::MPI_Finalize();
        }
    }
}
