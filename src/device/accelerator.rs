//! GPU backends and their devices.
//!
//! Each backend has a cargo feature of the same name as in Burn.

use burn::tensor::{Device, DeviceType};
use std::{fmt, panic};

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

/// The backends of this program, fastest first, with Burn's types of their devices.
pub(super) const BUILT_IN: &[(Accelerator, DeviceType)] = &[
    #[cfg(feature = "cuda")]
    (Accelerator::Cuda, DeviceType::Cuda),
    #[cfg(feature = "rocm")]
    (Accelerator::Rocm, DeviceType::Rocm),
    #[cfg(feature = "metal")]
    (Accelerator::Metal, DeviceType::Metal),
    #[cfg(feature = "vulkan")]
    (Accelerator::Vulkan, DeviceType::Vulkan),
    #[cfg(feature = "wgpu")]
    (Accelerator::Wgpu, DeviceType::Wgpu),
];

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

    /// Lists the devices in the numbering of `--device`. Panics of broken drivers become errors.
    ///
    /// # Errors
    /// If this program was built without the backend, or a driver is missing.
    pub fn devices(self) -> Result<Vec<AvailableDevice>, String> {
        let Some((_, kind)) = BUILT_IN.iter().find(|(kind, _)| *kind == self) else {
            let cuda = self == Accelerator::Cuda;
            let features = if cuda { "the default features".into() } else { format!("--features {self}") };
            return Err(format!("this program was built without {self}; build it with {features}"));
        };
        #[cfg(feature = "cuda")]
        if self == Accelerator::Cuda {
            let found = collective::cuda::devices().map_err(|error| error.to_string())?;
            let device = |gpu: collective::cuda::Gpu| AvailableDevice {
                device: Device::cuda(gpu.index),
                name: Some(gpu.name),
                software: false,
            };
            return Ok(found.into_iter().map(device).collect());
        }
        let hook = panic::take_hook();
        panic::set_hook(Box::new(|_| {}));
        let found = panic::catch_unwind(|| {
            let device =
                |device: Device| AvailableDevice { name: None, software: is_software(&device), device };
            Device::enumerate(kind.clone()).into_vec().into_iter().map(device).collect()
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
#[cfg(not(any(feature = "metal", feature = "vulkan", feature = "wgpu")))]
fn is_software(_: &Device) -> bool {
    false
}

impl fmt::Display for Accelerator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
