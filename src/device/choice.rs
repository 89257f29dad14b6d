//! Device flags, and the GPUs available to them.

use super::{Accelerator, LocalDevice, accelerator::BUILT_IN};
use std::str::FromStr;

/// Value of `--device`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArg {
    Auto,
    Cpu,
    Gpu(Accelerator, Option<usize>),
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let (kind, number) = s.split_once(':').map_or((s, None), |(kind, number)| (kind, Some(number)));
        match (kind, Accelerator::named(kind), number.map(str::parse).transpose()) {
            ("auto", _, Ok(None)) => Ok(DeviceArg::Auto),
            ("cpu", _, Ok(None)) => Ok(DeviceArg::Cpu),
            (_, Some(kind), Ok(number)) => Ok(DeviceArg::Gpu(kind, number)),
            _ => Err("expected auto, cpu, cuda, rocm, metal, vulkan or wgpu; a GPU may have a number from 0, as in cuda:0".into()),
        }
    }
}

/// Parses an entry of `--device-ids`: a GPU, or one of several replicas on the CPU.
impl FromStr for LocalDevice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kind, number) = text.split_once(':').unwrap_or(("cuda", text));
        match (kind, Accelerator::named(kind), number.parse()) {
            ("cpu", _, Ok(number)) => Ok(LocalDevice::CpuReplica(number)),
            (_, Some(kind), Ok(number)) => Ok(LocalDevice::Gpu(kind, number)),
            _ => Err("expected N or cuda:N for a GPU, or cpu:N, with N a number from 0".into()),
        }
    }
}

/// GPUs of one backend that a run may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gpus {
    pub kind: Accelerator,
    pub count: usize,
}

/// Finds the GPUs of the backend that `--device` names, or of the fastest one available.
///
/// # Errors
/// If there are none, or `wanted` is the CPU. The error states the reason.
pub fn gpus(wanted: DeviceArg) -> Result<Gpus, String> {
    match wanted {
        DeviceArg::Cpu => Err("the CPU was requested".into()),
        DeviceArg::Gpu(kind, _) => kind.count(true).map(|count| Gpus { kind, count }),
        DeviceArg::Auto => {
            let mut reasons = Vec::new();
            for (kind, _) in BUILT_IN {
                match kind.count(false) {
                    Ok(count) => return Ok(Gpus { kind: *kind, count }),
                    Err(reason) => reasons.push(reason),
                }
            }
            if reasons.is_empty() {
                reasons.push("this program was built without any GPU's backend".into());
            }
            Err(reasons.join("; "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_named_as_documented() {
        assert_eq!("cuda:3".parse(), Ok(DeviceArg::Gpu(Accelerator::Cuda, Some(3))));
        assert_eq!("cuda".parse(), Ok(DeviceArg::Gpu(Accelerator::Cuda, None)));
        assert_eq!("vulkan:0".parse(), Ok(DeviceArg::Gpu(Accelerator::Vulkan, Some(0))));
        for bad in ["gpu", "cuda:", "cuda:-1", "cuda:x", "cpu:0:1", ""] {
            assert!(bad.parse::<DeviceArg>().is_err(), "{bad}");
        }
    }
}
