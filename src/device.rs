//! The device a rank computes on, and how many this machine has.

use burn::tensor::Device;
use serde::{Serialize, Serializer};
use std::fmt;

/// One device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalDevice {
    Cpu,
    /// Logical number: position in `CUDA_VISIBLE_DEVICES`.
    Cuda(usize),
}

impl LocalDevice {
    /// As Burn names it.
    pub fn burn(self) -> Device {
        match self {
            LocalDevice::Cpu => Device::flex(),
            #[cfg(feature = "cuda")]
            LocalDevice::Cuda(index) => Device::cuda(index),
            #[cfg(not(feature = "cuda"))]
            LocalDevice::Cuda(_) => unreachable!("gpus() finds none without the cuda feature"),
        }
    }
}

impl fmt::Display for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalDevice::Cpu => f.write_str("cpu"),
            LocalDevice::Cuda(index) => write!(f, "cuda:{index}"),
        }
    }
}

impl Serialize for LocalDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// GPUs this program can use, or why it cannot.
pub fn gpus() -> Result<usize, String> {
    #[cfg(feature = "cuda")]
    match collective::cuda::device_count() {
        Ok(0) => Err("the NVIDIA driver shows no GPU (is CUDA_VISIBLE_DEVICES empty?)".into()),
        Ok(count) => Ok(count),
        Err(error) => Err(error.to_string()),
    }
    #[cfg(not(feature = "cuda"))]
    Err("this program was built without CUDA; build it with the default features".into())
}

/// Cores this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
