//! Choice of NCCL or host memory for collectives on tensors.

use crate::device::{Accelerator, LocalDevice};
use anyhow::{Result, bail};
use collective::{DevicePath, ProcessGroup, Transport, transport::nccl::DeviceSite};
use std::sync::Arc;

/// Attaches the group's devices to NCCL if possible, and returns a description of the transport.
///
/// It is a collective: every rank must call it. A group of one rank is attached only with `even_alone`. If CUDA
/// devices use host memory, rank 0 prints a warning with the reason.
///
/// # Errors
/// If a collective fails, or `wanted` is NCCL and it cannot be used.
pub fn attach(
    wanted: Transport,
    device: LocalDevice,
    group: &ProcessGroup,
    even_alone: bool,
    warn: &dyn Fn(&str),
) -> Result<String> {
    let host = group.transport();
    if group.world_size() == 1 && !even_alone {
        return Ok(host.into());
    }
    let devices: Vec<String> = group.all_gather_object(&device.to_string())?;
    let kind = |device: &String| device.split(':').next().unwrap_or_default().to_string();
    if let Some(rank) = (1..devices.len()).find(|rank| kind(&devices[*rank]) != kind(&devices[0])) {
        warn(&format!(
            "the world mixes devices (rank 0 has {}, rank {rank} {}): results are unaffected, but every step waits for the slowest rank",
            devices[0], devices[rank]
        ));
    }
    let cuda = Accelerator::Cuda.name();
    let some = devices.iter().any(|device| kind(device) == cuda);
    match wanted {
        Transport::Nccl => {}
        Transport::Auto if some => {}
        _ => return Ok(host.into()),
    }
    match group.attach(site(device))? {
        DevicePath::Nccl(library) => Ok(format!("nccl with {host} ({library})")),
        DevicePath::Host(why) if wanted == Transport::Nccl => {
            bail!("--transport nccl: {why}. Leave the flag out to use host memory")
        }
        DevicePath::Host(why) => {
            warn(&format!(
                "gradients are reduced in host memory over {host} instead of NCCL: {why}. Each step copies all gradients to the host and back while the GPUs are idle"
            ));
            Ok(format!("{host}, staged through host memory"))
        }
    }
}

/// Returns the NCCL interface of a device.
///
/// # Errors
/// If the device is not an NVIDIA GPU or cannot be initialised, or this program was built without CUDA.
pub fn site(device: LocalDevice) -> Result<Arc<dyn DeviceSite>, String> {
    match device {
        #[cfg(feature = "cuda")]
        LocalDevice::Gpu(Accelerator::Cuda, index) => {
            let site = collective::cuda::CudaSite::new(index).map_err(|error| error.to_string())?;
            Ok(Arc::new(site))
        }
        _ if !cfg!(feature = "cuda") => Err(Accelerator::Cuda.devices().err().unwrap_or_default()),
        other => Err(format!("its device is {other}, and NCCL is for NVIDIA GPUs")),
    }
}
