//! The device a rank computes on, and how many of its kind this machine has.

mod accelerator;
mod allocator;
mod choice;
pub mod faults;
#[cfg(feature = "cuda")]
pub mod kernel_cache;
pub mod list;
pub mod transport;

pub use accelerator::Accelerator;
pub use allocator::keep_memory;
pub use choice::{DeviceArg, DeviceId, Gpus, gpus};

use anyhow::{Result, bail};
use burn::tensor::Device;
use serde::{Serialize, Serializer};
use std::fmt;

/// What a rank takes on a GPU before its first batch: CUDA's own part, Burn's kernels, the model.
pub const LEAST_MEMORY: usize = 300 << 20;

/// One device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalDevice {
    Cpu,
    /// With its number; CUDA's is the position in `CUDA_VISIBLE_DEVICES`.
    Gpu(Accelerator, usize),
}

impl LocalDevice {
    /// As Burn names it.
    ///
    /// # Errors
    /// If it is not there, or has too little memory left.
    pub fn burn(self) -> Result<Device> {
        match self {
            LocalDevice::Cpu => Ok(Device::flex()),
            LocalDevice::Gpu(kind, index) => kind.device(index),
        }
    }

    /// Whether its kernels are compiled when they are first used, and kept in the kernel cache.
    pub fn compiles_kernels(self) -> bool {
        matches!(self, LocalDevice::Gpu(Accelerator::Cuda, _))
    }

    /// What makes it slower than it could be, and what to install.
    pub fn advice(self) -> Vec<String> {
        match self {
            LocalDevice::Cpu => Vec::new(),
            LocalDevice::Gpu(kind, _) => kind.advice(),
        }
    }

    /// How much of a GPU's memory is free, where its driver tells.
    ///
    /// # Errors
    /// The driver's.
    pub fn memory(self) -> Result<Option<String>> {
        let LocalDevice::Gpu(kind, index) = self else { return Ok(None) };
        let told = kind.memory(index)?;
        Ok(told.map(|(free, total)| format!("{} of {} free on {self}", gigabytes(free), gigabytes(total))))
    }

    /// Bytes of a GPU's memory that are free, where its driver tells.
    ///
    /// # Errors
    /// The driver's.
    pub fn free_memory(self) -> Result<Option<usize>> {
        let LocalDevice::Gpu(kind, index) = self else { return Ok(None) };
        Ok(kind.memory(index)?.map(|(free, _)| free))
    }

    /// Refuses a GPU that others have filled, or that does not compute.
    ///
    /// # Errors
    /// With how much is free, or what failed.
    pub fn check(self) -> Result<()> {
        let LocalDevice::Gpu(kind, index) = self else { return Ok(()) };
        match kind.memory(index)? {
            Some((free, total)) if free < LEAST_MEMORY => bail!(
                "{self} has {} of its {} free, too little to train on; other processes hold the rest (nvidia-smi shows which)",
                gigabytes(free),
                gigabytes(total)
            ),
            Some(_) | None => kind.check(index),
        }
    }
}

/// `139.8 GB`
pub fn gigabytes(bytes: usize) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

impl fmt::Display for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalDevice::Cpu => f.write_str("cpu"),
            LocalDevice::Gpu(kind, index) => write!(f, "{kind}:{index}"),
        }
    }
}

impl Serialize for LocalDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}
