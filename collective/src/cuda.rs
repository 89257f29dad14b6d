//! What CUDA this machine has, found without starting it and without panicking.

use crate::{Error, Result};

/// GPUs the driver shows, in `CUDA_VISIBLE_DEVICES`' order, once everything Burn's CUDA backend
/// needs is there.
///
/// # Errors
/// Naming the library that was not found, and the file names tried; or the driver's own error.
pub fn device_count() -> Result<usize> {
    // SAFETY: both load a system library by name and drop it again.
    let (driver, nvrtc) =
        unsafe { (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present()) };
    if !driver {
        return Err(missing("the NVIDIA driver", "libcuda.so, libcuda.so.1", "install the NVIDIA driver"));
    }
    cudarc::driver::result::init().map_err(driver_error)?;
    let count = cudarc::driver::result::device::get_count().map_err(driver_error)?;
    if count > 0 && !nvrtc {
        let hint = "install the CUDA toolkit, or put the folder of libnvrtc on LD_LIBRARY_PATH";
        return Err(missing("CUDA's run-time compiler", "libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12", hint));
    }
    usize::try_from(count).map_err(|_| Error::Invalid(format!("the NVIDIA driver counts {count} GPUs")))
}

fn missing(what: &str, tried: &str, hint: &str) -> Error {
    Error::Invalid(format!("{what} was not found (tried {tried}); {hint}"))
}

fn driver_error(error: cudarc::driver::DriverError) -> Error {
    Error::Invalid(format!("the NVIDIA driver answers {:?}; does nvidia-smi work?", error.0))
}
