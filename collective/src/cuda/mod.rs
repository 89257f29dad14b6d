//! CUDA: what GPUs this machine has, found without starting one and without panicking, and the
//! device data plane on them.

mod raw;
mod stream;
mod tensor;

pub use raw::raw_all_reduce;
pub use stream::{CudaSite, HOST_SYNC};
pub(crate) use tensor::{exchange, is_on};

use crate::{Error, Result};
use cudarc::driver::{DriverError, result, sys};

/// One GPU, as the driver shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Position in `CUDA_VISIBLE_DEVICES`.
    pub index: usize,
    /// Its name, as nvidia-smi shows it.
    pub name: String,
    /// Bytes.
    pub memory: usize,
}

/// Which GPUs the driver shows, and in which order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// GPUs the driver shows, in `CUDA_VISIBLE_DEVICES`' order, once everything Burn's CUDA backend
/// needs is there.
///
/// # Errors
/// Naming the library that was not found, and the file names tried; `CUDA_VISIBLE_DEVICES` if it hides
/// all GPUs; or the driver's own error.
pub fn device_count() -> Result<usize> {
    let visible = std::env::var(VISIBLE).ok();
    if let Some(visible) = visible.as_deref().filter(|visible| names_none(visible)) {
        return Err(hidden(visible));
    }
    // SAFETY: both load a system library by name and drop it again.
    let (driver, nvrtc) =
        unsafe { (cudarc::driver::sys::is_culib_present(), cudarc::nvrtc::sys::is_culib_present()) };
    if !driver {
        return Err(missing("the NVIDIA driver", "libcuda.so, libcuda.so.1", "install the NVIDIA driver"));
    }
    let count = match (result::init().and_then(|()| result::device::get_count()), visible) {
        (Ok(0) | Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)), Some(visible)) => {
            return Err(hidden(&visible));
        }
        (count, _) => count.map_err(driver_error)?,
    };
    if count > 0 && !nvrtc {
        let hint = "install the CUDA toolkit, or put the folder of libnvrtc on LD_LIBRARY_PATH";
        return Err(missing("CUDA's run-time compiler", "libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12", hint));
    }
    usize::try_from(count).map_err(|_| Error::Invalid(format!("the NVIDIA driver counts {count} GPUs")))
}

/// The GPUs that [`device_count`] counts.
///
/// # Errors
/// The same.
pub fn devices() -> Result<Vec<Gpu>> {
    (0..device_count()?)
        .map(|index| {
            let device = device(index)?;
            let name = result::device::get_name(device).map_err(driver_error)?;
            // SAFETY: the device is one that the driver has just given.
            let memory = unsafe { result::device::total_mem(device) }.map_err(driver_error)?;
            Ok(Gpu { index, name, memory })
        })
        .collect()
}

/// Bytes of a GPU's memory that are free, and all of it. This starts the GPU in this process, which
/// itself takes some hundred megabytes.
///
/// # Errors
/// The driver's, such as that there is not enough memory even for that.
pub fn free_memory(index: usize) -> Result<(usize, usize)> {
    CudaSite::new(index)?.enter()?;
    result::mem_get_info().map_err(driver_error)
}

/// The driver's version: 12050 is CUDA 12.5.
///
/// # Errors
/// If there is no driver, or its own.
pub fn driver_version() -> Result<i32> {
    device_count()?;
    let mut version = 0;
    // SAFETY: it writes one number; the driver is there.
    unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(driver_error)?;
    Ok(version)
}

fn device(index: usize) -> Result<sys::CUdevice> {
    let count = device_count()?;
    if index >= count {
        return Err(Error::Invalid(format!("cuda:{index}: there are {count} GPUs here, numbered from 0")));
    }
    result::device::get(index as i32).map_err(driver_error)
}

/// Whether this value of `CUDA_VISIBLE_DEVICES` hides every GPU of any machine: the driver ignores the
/// first entry that is not a GPU and everything after it.
fn names_none(visible: &str) -> bool {
    let first = visible.split(',').next().unwrap_or_default().trim();
    first.is_empty() || first.starts_with('-')
}

/// For a value of `CUDA_VISIBLE_DEVICES` that leaves no GPU.
fn hidden(visible: &str) -> Error {
    let what = match visible.trim() {
        "" => format!("{VISIBLE} is empty, which hides all GPUs"),
        visible => format!("{VISIBLE}={visible} hides all GPUs of this machine"),
    };
    Error::Invalid(format!("{what}; unset it, or name the GPUs to use, such as 0,1"))
}

fn missing(what: &str, tried: &str, hint: &str) -> Error {
    Error::Invalid(format!("{what} was not found (tried {tried}); {hint}"))
}

fn driver_error(error: DriverError) -> Error {
    Error::Invalid(format!("the NVIDIA driver answers {:?}; does nvidia-smi work?", error.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_that_hides_all_gpus_is_recognised() {
        for none in ["", " ", "-1", ",0", "-1,0"] {
            assert!(names_none(none), "{none:?}");
        }
        for some in ["0", "1,0", "GPU-8932f937", "0,-1"] {
            assert!(!names_none(some), "{some:?}");
        }
        assert!(hidden("").to_string().contains("CUDA_VISIBLE_DEVICES is empty"));
        assert!(hidden("-1").to_string().contains("CUDA_VISIBLE_DEVICES=-1 hides all GPUs"));
    }
}
