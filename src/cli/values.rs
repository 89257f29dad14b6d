//! The values that flags can have, and how they are read.

use crate::accelerator::Accelerator;
use clap::ValueEnum;
use collective::lr::LrScaling;
use serde::{Deserialize, Serialize};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    Auto,
    /// One device, one process
    Single,
    /// Many devices, one process, a thread each
    Dp,
    /// Many devices, a process each
    Ddp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DpReduceArg {
    /// One device after the other
    Main,
    /// In pairs, and pairs of pairs
    Tree,
    /// In one collective of all devices, NCCL's where they are NVIDIA GPUs
    AllReduce,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ScaleArg {
    Linear,
    Sqrt,
    None,
}

impl From<ScaleArg> for LrScaling {
    fn from(scale: ScaleArg) -> Self {
        match scale {
            ScaleArg::Linear => LrScaling::Linear,
            ScaleArg::Sqrt => LrScaling::Sqrt,
            ScaleArg::None => LrScaling::None,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProgressArg {
    Auto,
    Bar,
    Plain,
    Tui,
}

/// `--device`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceArg {
    Auto,
    Cpu,
    Gpu(Accelerator, Option<usize>),
}

impl std::str::FromStr for DeviceArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => return Ok(DeviceArg::Auto),
            "cpu" => return Ok(DeviceArg::Cpu),
            _ => {}
        }
        let (kind, number) = s.split_once(':').map_or((s, None), |(kind, number)| (kind, Some(number)));
        let number = number.map(str::parse).transpose();
        match (kind.parse(), number) {
            (Ok(kind), Ok(number)) => Ok(DeviceArg::Gpu(kind, number)),
            _ => Err("expected auto, cpu, cuda, rocm, metal, vulkan or wgpu, or such as cuda:N with N a device number from 0".into()),
        }
    }
}

/// `--nproc-per-node`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NprocArg {
    Auto,
    Count(usize),
}

impl std::str::FromStr for NprocArg {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "auto" => Ok(NprocArg::Auto),
            _ => positive(s).map(NprocArg::Count).map_err(|_| "expected auto or a number from 1".into()),
        }
    }
}

/// A whole number from 1.
pub fn positive(s: &str) -> Result<usize, String> {
    s.parse().ok().filter(|&n| n > 0).ok_or_else(|| "expected a number from 1".into())
}

/// A finite number that fits; `what` says which do.
pub fn bounded(s: &str, what: &str, fits: impl Fn(f64) -> bool) -> Result<f64, String> {
    s.parse().ok().filter(|&x: &f64| x.is_finite() && fits(x)).ok_or_else(|| format!("expected {what}"))
}

pub(crate) fn probability(s: &str) -> Result<f64, String> {
    bounded(s, "a number from 0 to below 1", |x| (0.0..1.0).contains(&x))
}

pub(crate) fn rate(s: &str) -> Result<f64, String> {
    bounded(s, "a number from 0", |x| x >= 0.0)
}

pub(crate) fn seconds(s: &str) -> Result<f64, String> {
    bounded(s, "a number of seconds from 0.001 to 1e6", |x| (1e-3..=1e6).contains(&x))
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
