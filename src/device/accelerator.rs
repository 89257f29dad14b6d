//! GPU backends and their devices.
//!
//! Each backend has a cargo feature of the same name as in Burn.

use burn::tensor::Device;
use std::fmt;

/// A GPU backend of Burn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    Cuda,
    Rocm,
    Metal,
    Vulkan,
    /// Any graphics API that is available.
    Wgpu,
}

/// A device of this machine.
pub struct AvailableDevice {
    pub device: Device,
    name: Option<String>,
    /// Whether it is a software renderer that computes on the CPU.
    pub software: bool,
}

impl AvailableDevice {
    /// Name reported by the driver. Reading it may initialise the device.
    pub fn name(&self) -> String {
        #[cfg(any(feature = "rocm", feature = "metal", feature = "vulkan", feature = "wgpu"))]
        let identity = || self.device.identity().map(|identity| identity.name);
        #[cfg(not(any(feature = "rocm", feature = "metal", feature = "vulkan", feature = "wgpu")))]
        let identity = || None;
        self.name.clone().or_else(identity).unwrap_or_default()
    }
}

impl Accelerator {
    /// All backends, fastest first.
    pub const ALL: [Accelerator; 5] =
        [Accelerator::Cuda, Accelerator::Rocm, Accelerator::Metal, Accelerator::Vulkan, Accelerator::Wgpu];

    /// Name in `--device`, of the cargo feature and in Burn.
    pub const fn name(self) -> &'static str {
        match self {
            Accelerator::Cuda => "cuda",
            Accelerator::Rocm => "rocm",
            Accelerator::Metal => "metal",
            Accelerator::Vulkan => "vulkan",
            Accelerator::Wgpu => "wgpu",
        }
    }

    /// The backend of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether this program was built with the backend.
    pub const fn is_built_in(self) -> bool {
        match self {
            Accelerator::Cuda => cfg!(feature = "cuda"),
            Accelerator::Rocm => cfg!(feature = "rocm"),
            Accelerator::Metal => cfg!(feature = "metal"),
            Accelerator::Vulkan => cfg!(feature = "vulkan"),
            Accelerator::Wgpu => cfg!(feature = "wgpu"),
        }
    }

    /// Number of devices, with or without software renderers.
    ///
    /// # Errors
    /// If there is none. The error states the reason.
    pub fn count(self, software: bool) -> Result<usize, String> {
        match self.devices()?.iter().filter(|found| software || !found.software).count() {
            0 if self == Accelerator::Cuda => Err("the NVIDIA driver shows no GPU".into()),
            0 => Err(format!("no driver shows a device for {self}")),
            count => Ok(count),
        }
    }

    /// Lists the devices in the numbering of `--device`.
    ///
    /// # Errors
    /// If this program was built without the backend, or a driver is missing.
    pub fn devices(self) -> Result<Vec<AvailableDevice>, String> {
        match self {
            _ if !self.is_built_in() => {
                Err(format!("this program was built without {self}; {}", self.how_to_build()))
            }
            #[cfg(feature = "cuda")]
            Accelerator::Cuda => {
                let found = collective::cuda::devices().map_err(|error| error.to_string())?;
                let device = |gpu: collective::cuda::Gpu| AvailableDevice {
                    device: Device::cuda(gpu.index),
                    name: Some(gpu.name),
                    software: false,
                };
                Ok(found.into_iter().map(device).collect())
            }
            #[cfg(any(feature = "rocm", feature = "metal", feature = "vulkan", feature = "wgpu"))]
            _ => self.enumerate(),
            #[cfg(not(any(feature = "rocm", feature = "metal", feature = "vulkan", feature = "wgpu")))]
            _ => Ok(Vec::new()),
        }
    }

    /// Instruction to build the program with this backend.
    pub fn how_to_build(self) -> String {
        match self {
            Accelerator::Cuda => "build it with the default features".into(),
            other => format!("build it with --features {}", other.name()),
        }
    }

    /// Lists the devices and converts panics of broken drivers into errors.
    #[cfg(any(feature = "rocm", feature = "metal", feature = "vulkan", feature = "wgpu"))]
    fn enumerate(self) -> Result<Vec<AvailableDevice>, String> {
        use burn::tensor::DeviceType;
        use std::panic;
        let kind = match self {
            #[cfg(feature = "rocm")]
            Accelerator::Rocm => DeviceType::Rocm,
            #[cfg(feature = "metal")]
            Accelerator::Metal => DeviceType::Metal,
            #[cfg(feature = "vulkan")]
            Accelerator::Vulkan => DeviceType::Vulkan,
            #[cfg(feature = "wgpu")]
            Accelerator::Wgpu => DeviceType::Wgpu,
            _ => return Ok(Vec::new()),
        };
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let found = panic::catch_unwind(|| {
            let device =
                |device: Device| AvailableDevice { name: None, software: is_software(&device), device };
            Device::enumerate(kind).into_vec().into_iter().map(device).collect()
        });
        panic::set_hook(hook);
        found.map_err(|_| {
            format!("looking for {self} devices failed; does the driver's own test program work?")
        })
    }
}

/// Whether the device is a software renderer, such as Mesa's llvmpipe.
#[cfg(any(feature = "metal", feature = "vulkan", feature = "wgpu"))]
fn is_software(device: &Device) -> bool {
    use burn::backend::{CubeDevice, DispatchDevice, WgpuDeviceKind};
    match device.as_dispatch() {
        DispatchDevice::Cube(CubeDevice::Wgpu(device)) => device.kind == WgpuDeviceKind::Cpu,
        _ => false,
    }
}
#[cfg(all(feature = "rocm", not(any(feature = "metal", feature = "vulkan", feature = "wgpu"))))]
fn is_software(_: &Device) -> bool {
    false
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
