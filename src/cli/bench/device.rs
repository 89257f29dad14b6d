//! `burn-ddp bench device`: an all-reduce of a tensor in a GPU's memory against NCCL alone.

use crate::{
    device::{Accelerator, DeviceArg},
    process::{console::print_line, timing::median},
};
use anyhow::{Result, bail};
use burn::tensor::{Device, Tensor};
use clap::Args;
use collective::{DevicePath, ProcessGroup, ReduceOp, cuda, tensor};
use std::{process::ExitCode, sync::Arc, time::Instant};

#[derive(Args, Clone, Debug)]
pub struct DeviceBench {
    /// Device: cuda or cuda:N
    #[arg(long, default_value = "cuda")]
    device: DeviceArg,
    /// Numbers of f32 elements
    #[arg(long, default_value = "1024,65536,1199882,16777216,67108864", value_delimiter = ',')]
    count: Vec<usize>,
    /// All-reduces per size
    #[arg(long, default_value_t = 200, value_parser = crate::context::values::positive)]
    rounds: usize,
}

/// Prints one line of JSON per size, with medians in microseconds, for a world of one rank.
///
/// # Errors
/// If the device is not a CUDA GPU, NCCL cannot be used, or a call fails.
pub fn run(bench: &DeviceBench) -> Result<ExitCode> {
    let index = match bench.device {
        DeviceArg::Gpu(Accelerator::Cuda, index) => index.unwrap_or(0),
        DeviceArg::Gpu(..) | DeviceArg::Cpu | DeviceArg::Auto => bail!("--device: only cuda has NCCL"),
    };
    let group = ProcessGroup::solo();
    let site = cuda::CudaSite::new(index)?;
    let ordered = site.orders_device();
    match group.attach(Ok(Arc::new(site)))? {
        DevicePath::Nccl(_) => {}
        DevicePath::Host(why) => bail!("NCCL cannot be used: {why}"),
    }
    let device = Device::cuda(index);
    for &count in &bench.count {
        let mut raw = cuda::raw_all_reduce(&group, index, count, bench.rounds + 20)?;
        let raw = median(raw.split_off(20).iter().map(|time| time.as_secs_f64() * 1e6).collect());
        let input = Tensor::<1>::ones([count], &device);
        let once = || -> Result<(f64, f64)> {
            device.sync()?;
            let begun = Instant::now();
            let output = tensor::all_reduce(input.clone(), &group, ReduceOp::Sum)?;
            let called = begun.elapsed().as_secs_f64() * 1e6;
            device.sync()?;
            drop(output);
            Ok((called, begun.elapsed().as_secs_f64() * 1e6))
        };
        let times = (0..bench.rounds + 20).map(|_| once()).collect::<Result<Vec<_>>>()?;
        let times = &times[20..];
        let called = median(times.iter().map(|(called, _)| *called).collect());
        let whole = median(times.iter().map(|(_, whole)| *whole).collect());
        print_line(&format!(
            "{{\"count\":{count},\"raw_us\":{raw:.1},\"call_us\":{called:.1},\"tensor_us\":{whole:.1},\"ratio\":{:.3},\"device_ordered\":{ordered}}}",
            whole / raw
        ))?;
    }
    group.destroy();
    Ok(ExitCode::SUCCESS)
}
