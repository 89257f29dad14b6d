//! The driver, NVRTC and headers with which CubeCL compiles kernels, checked before a device is chosen.

mod headers;
mod nvrtc;

use crate::{Error, Result};
use cudarc::driver::sys;
use serde::{Deserialize, Serialize};
use std::{fmt, path::PathBuf, sync::OnceLock};

/// The version of cudarc's bindings. Later bindings call functions that older drivers lack.
pub const OLDEST_DRIVER: CudaVersion = CudaVersion { major: 12, minor: 0 };
/// The branch of the NVIDIA driver that supports [`OLDEST_DRIVER`].
const OLDEST_BRANCH: u32 = 525;

/// A version of CUDA, such as 12.8.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CudaVersion {
    /// Major version, such as 12.
    pub major: i32,
    /// Minor version, such as 8.
    pub minor: i32,
}

impl CudaVersion {
    /// Parses a number such as 12080.
    fn from_number(number: i32) -> Self {
        CudaVersion { major: number / 1000, minor: number % 1000 / 10 }
    }
}

impl fmt::Display for CudaVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// The installed software that compiles kernels for this machine's GPUs.
#[derive(Clone, Debug)]
pub struct Toolkit {
    /// The newest version of CUDA that the driver supports.
    pub driver: CudaVersion,
    /// The version of NVRTC.
    pub nvrtc: CudaVersion,
    /// The path of the loaded NVRTC.
    pub nvrtc_path: PathBuf,
    /// The folder of headers that kernels include.
    pub include: PathBuf,
    /// Kinds of kernels that are unavailable because headers are missing, each with what to install.
    ///
    /// Training works without them, but is slower.
    pub lost: Vec<String>,
}

impl Toolkit {
    /// This process's toolkit, checked at the first call.
    ///
    /// # Errors
    /// If the driver is too old, NVRTC is missing or newer than the driver, or its headers are missing. The
    /// error names what to install.
    pub fn get() -> Result<&'static Toolkit> {
        static TOOLKIT: OnceLock<Result<Toolkit>> = OnceLock::new();
        TOOLKIT.get_or_init(Self::find).as_ref().map_err(Error::clone)
    }

    fn find() -> Result<Toolkit> {
        super::require_driver()?;
        let mut number = 0;
        // SAFETY: it writes one number.
        unsafe { sys::cuDriverGetVersion(&mut number) }.result().map_err(super::driver_error)?;
        let driver = CudaVersion::from_number(number);
        check_driver(driver)?;
        let (nvrtc, nvrtc_path) = nvrtc::load(driver)?;
        let include = headers::find()?;
        let lost = headers::lost(&include);
        Ok(Toolkit { driver, nvrtc, nvrtc_path, include, lost })
    }
}

fn check_driver(driver: CudaVersion) -> Result<()> {
    if driver >= OLDEST_DRIVER {
        return Ok(());
    }
    Err(Error::Invalid(format!(
        "the NVIDIA driver supports CUDA {driver}, and {OLDEST_DRIVER} is the oldest that works; install driver \
         {OLDEST_BRANCH} or later"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_and_ordered() {
        let versions = [12_080, 12_090, 13_000].map(CudaVersion::from_number);
        assert_eq!(versions.map(|version| version.to_string()), ["12.8", "12.9", "13.0"]);
        assert!(versions.is_sorted());
    }

    #[test]
    fn an_old_driver_is_rejected_with_both_versions() {
        assert!(check_driver(OLDEST_DRIVER).is_ok());
        let error = check_driver(CudaVersion::from_number(11_080)).unwrap_err().to_string();
        for part in ["CUDA 11.8", "12.0", "525"] {
            assert!(error.contains(part), "{error}");
        }
    }
}
