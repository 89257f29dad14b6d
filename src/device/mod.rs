//! Devices of this machine, and the one that a rank computes on.

mod accelerator;
mod allocator;
mod choice;
pub mod faults;
#[cfg(feature = "cuda")]
pub mod kernel_archive;
#[cfg(feature = "cuda")]
pub mod kernel_cache;
mod peak;
pub mod transport;

pub use accelerator::Accelerator;
pub use allocator::{Allocator, keep_memory, use_small_pages};
pub use choice::{DeviceArg, Gpus, gpus};
pub use kernels::host_tensor::is_flex;

use anyhow::{Context, Error, Result, bail};
use burn::tensor::Device;
use serde::{Serialize, Serializer};
use std::{fmt, fs};

/// GPU memory in bytes that a rank uses before its first batch: CUDA context, kernels and model.
const MIN_FREE_MEMORY: usize = 300 << 20;

/// A device of this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalDevice {
    Cpu,
    /// One of several replicas on the CPU.
    CpuReplica(usize),
    /// Backend and index; for CUDA, the position in `CUDA_VISIBLE_DEVICES`.
    Gpu(Accelerator, usize),
}

impl LocalDevice {
    /// Returns Burn's device.
    ///
    /// # Errors
    /// If there is no such device, or it fails to compute.
    pub fn burn(self) -> Result<Device> {
        let LocalDevice::Gpu(kind, index) = self else { return Ok(Device::flex()) };
        faults::watch(kind.name());
        #[cfg(feature = "cuda")]
        if self.compiles_kernels() {
            kernel_cache::enable()?;
        }
        let found = kind.devices().map_err(Error::msg)?;
        let count = found.len();
        let found = found.into_iter().nth(index);
        let found = found.with_context(|| format!("{self}: this machine has {count}, numbered from 0"))?;
        self.probe()?;
        Ok(found.device)
    }

    /// Verifies that a CUDA GPU computes.
    fn probe(self) -> Result<()> {
        #[cfg(feature = "cuda")]
        if let LocalDevice::Gpu(Accelerator::Cuda, index) = self {
            collective::cuda::probe(index)?;
        }
        Ok(())
    }

    /// Whether kernels are compiled on first use and stored in the kernel cache.
    pub fn compiles_kernels(self) -> bool {
        matches!(self, LocalDevice::Gpu(Accelerator::Cuda, _))
    }

    /// Missing components that make the device slower, with instructions to install them.
    pub fn advice(self) -> Vec<String> {
        #[cfg(feature = "cuda")]
        if self.compiles_kernels() {
            let toolkit = collective::cuda::Toolkit::get();
            return toolkit.map(|toolkit| toolkit.lost.clone()).unwrap_or_default();
        }
        Vec::new()
    }

    /// Free and total memory of a GPU in bytes; `None` if its driver does not report them.
    ///
    /// # Errors
    /// If the driver call fails.
    pub fn memory(self) -> Result<Option<(usize, usize)>> {
        #[cfg(feature = "cuda")]
        if let LocalDevice::Gpu(Accelerator::Cuda, index) = self {
            return Ok(Some(collective::cuda::free_memory(index)?));
        }
        Ok(None)
    }

    /// Checks that a GPU has enough free memory and computes.
    ///
    /// # Errors
    /// If less than 300 MiB is free, or the test computation fails.
    pub fn check(self) -> Result<()> {
        match self.memory()? {
            Some((free, total)) if free < MIN_FREE_MEMORY => bail!(
                "{self} has {} of its {} free, too little for training; other processes use the rest (nvidia-smi shows which)",
                gigabytes(free),
                gigabytes(total)
            ),
            Some(_) | None => self.probe(),
        }
    }

    /// Checks that a GPU has room for training and `bytes` of images, which `flag` keeps in its memory.
    ///
    /// # Errors
    /// If too little memory is free, or the driver call fails.
    pub fn check_room(self, flag: &str, bytes: usize) -> Result<()> {
        match self.memory()? {
            Some((free, _)) if free < MIN_FREE_MEMORY + bytes => bail!(
                "{flag}: training with all images in memory takes at least {}, but {self} has {} free; leave out the flag",
                gigabytes(MIN_FREE_MEMORY + bytes),
                gigabytes(free)
            ),
            Some(_) | None => Ok(()),
        }
    }
}

/// Free and total memory of this machine in bytes; a container's limit reduces the free memory.
pub(crate) fn host_memory() -> Option<(u64, u64)> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let cgroup = |file: &str| -> Option<u64> {
        // "max" means no limit and does not parse.
        fs::read_to_string(format!("/sys/fs/cgroup/{file}")).ok()?.trim().parse().ok()
    };
    let left = cgroup("memory.max").map(|max| max.saturating_sub(cgroup("memory.current").unwrap_or(0)));
    let free = meminfo(&text, "MemAvailable:")?;
    Some((left.map_or(free, |left| free.min(left)), meminfo(&text, "MemTotal:")?))
}

/// Bytes of the entry `key` of `/proc/meminfo`, which is in KiB.
fn meminfo(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(key))?;
    line.split_whitespace().nth(1)?.parse::<u64>().ok().map(|kib| kib << 10)
}

/// Formats bytes as gigabytes, such as `139.8 GB`.
pub fn gigabytes(bytes: usize) -> String {
    format!("{:.1} GB", bytes as f64 / 1e9)
}

/// Formats bytes in KiB, MiB or GiB.
pub fn binary_size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    }
}

impl fmt::Display for LocalDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LocalDevice::Cpu => f.write_str("cpu"),
            LocalDevice::CpuReplica(number) => write!(f, "cpu:{number}"),
            LocalDevice::Gpu(kind, index) => write!(f, "{kind}:{index}"),
        }
    }
}

impl Serialize for LocalDevice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::{binary_size, meminfo};

    #[test]
    fn meminfo_is_read_in_bytes() {
        let text = "MemTotal:       1024 kB\nMemAvailable:    512 kB\n";
        assert_eq!(meminfo(text, "MemAvailable:"), Some(512 << 10));
        assert_eq!(meminfo(text, "Nothing:"), None);
    }

    #[test]
    fn binary_sizes_have_units() {
        assert_eq!([2048, 64 << 20, 3 << 29].map(binary_size), ["2 KiB", "64 MiB", "1.5 GiB"]);
    }
}
