//! CUDA: detection of GPUs, without initialising one or panicking, and NCCL.

mod probe;
mod readback;
mod stream;
mod tensor;
mod toolkit;

pub use probe::probe;
pub(crate) use readback::QueuedRead;
pub use stream::{CudaSite, HOST_SYNC};
pub(crate) use tensor::{Started, exchange, is_on, start};
pub use toolkit::{CudaVersion, OLDEST_DRIVER, Toolkit};

use crate::{Error, Result};
use cudarc::driver::{DriverError, result, sys};

/// A GPU, as the driver reports it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Position in `CUDA_VISIBLE_DEVICES`.
    pub index: usize,
    /// Name, as in nvidia-smi.
    pub name: String,
    /// Compute capability times ten: 90 for sm_90.
    pub architecture: u32,
}

/// Environment variable with the visible GPUs and their order.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Number of visible GPUs, if everything that Burn's CUDA backend needs is installed.
///
/// # Errors
/// If the driver is missing, with the file names tried; if `CUDA_VISIBLE_DEVICES` hides all GPUs; if the driver
/// fails; and, if there are GPUs, those of [`Toolkit::get`].
pub fn device_count() -> Result<usize> {
    let count = driver_device_count()?;
    if count > 0 {
        Toolkit::get()?;
    }
    Ok(count)
}

/// Number of visible GPUs, whether or not kernels can be compiled for them.
///
/// # Errors
/// Those of [`device_count`], without those of [`Toolkit::get`].
pub fn driver_device_count() -> Result<usize> {
    let visible = std::env::var(VISIBLE).ok();
    if let Some(visible) = visible.as_deref().filter(|visible| names_none(visible)) {
        return Err(hidden(visible));
    }
    require_driver()?;
    let count = match (result::init().and_then(|()| result::device::get_count()), visible) {
        (Ok(0) | Err(DriverError(sys::CUresult::CUDA_ERROR_NO_DEVICE)), Some(visible)) => {
            return Err(hidden(&visible));
        }
        (count, _) => count.map_err(driver_error)?,
    };
    usize::try_from(count).map_err(|_| Error::Invalid(format!("the NVIDIA driver reports {count} GPUs")))
}

/// The GPUs that [`device_count`] counts.
///
/// # Errors
/// Those of [`device_count`], or the driver's.
pub fn devices() -> Result<Vec<Gpu>> {
    (0..device_count()?)
        .map(|index| {
            let device = device(index)?;
            let name = result::device::get_name(device).map_err(driver_error)?;
            Ok(Gpu { index, name, architecture: architecture(device)? })
        })
        .collect()
}

/// Free and total memory of a GPU in bytes.
///
/// It initialises the GPU in this process, which takes some hundred megabytes itself.
///
/// # Errors
/// The driver's, such as insufficient memory to initialise.
pub fn free_memory(index: usize) -> Result<(usize, usize)> {
    CudaSite::new(index)?.enter()?;
    result::mem_get_info().map_err(driver_error)
}

fn device(index: usize) -> Result<sys::CUdevice> {
    let count = device_count()?;
    if index >= count {
        return Err(Error::Invalid(format!("cuda:{index}: this machine has {count} GPUs, numbered from 0")));
    }
    result::device::get(index as i32).map_err(driver_error)
}

/// The compute capability times ten.
fn architecture(device: sys::CUdevice) -> Result<u32> {
    use sys::CUdevice_attribute as Attribute;
    let [major, minor] = [
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    ]
    // SAFETY: the device is one that the driver has given.
    .map(|attribute| unsafe { result::device::get_attribute(device, attribute) }.map_err(driver_error));
    Ok((major? * 10 + minor?).unsigned_abs())
}

/// Whether this value of `CUDA_VISIBLE_DEVICES` hides all GPUs.
///
/// The driver ignores the first entry that is not a GPU, and all later ones.
fn names_none(visible: &str) -> bool {
    let first = visible.split(',').next().unwrap_or_default().trim();
    first.is_empty() || first.starts_with('-')
}

/// The error for a value of `CUDA_VISIBLE_DEVICES` that hides all GPUs.
fn hidden(visible: &str) -> Error {
    let what = match visible.trim() {
        "" => format!("{VISIBLE} is empty, which hides all GPUs"),
        visible => format!("{VISIBLE}={visible} hides all GPUs of this machine"),
    };
    Error::Invalid(format!("{what}; unset it, or name the GPUs to use, such as 0,1"))
}

/// Checks for the driver, without which cudarc panics.
fn require_driver() -> Result<()> {
    // SAFETY: it loads a system library by name and drops it again.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(Error::Invalid(
        "the NVIDIA driver was not found (tried libcuda.so, libcuda.so.1); install the NVIDIA driver".into(),
    ))
}

fn driver_error(error: DriverError) -> Error {
    Error::Invalid(format!("the NVIDIA driver returned {:?}; does nvidia-smi work?", error.0))
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
