//! How data moves between this run's devices: in their memory where NCCL can, else through the
//! host, and then rank 0 says why.

use crate::{accelerator::Accelerator, console::Console, device::LocalDevice};
use anyhow::{Result, bail};
use collective::{DevicePath, ProcessGroup, Transport, transport::nccl::DeviceSite};
use std::sync::Arc;

/// Attaches the group's devices, if there is something to attach. Every rank must call it. A world
/// of one needs no collectives, and gets none of its own unless `even_alone`. Returns what moves
/// data between ranks, for the header.
///
/// # Errors
/// If the group fails, or NCCL was asked for and cannot be used.
pub fn attach(
    wanted: Transport,
    device: LocalDevice,
    group: &ProcessGroup,
    even_alone: bool,
    console: &Console,
) -> Result<String> {
    let host = group.transport();
    if group.world_size() == 1 && !even_alone {
        return Ok(host.into());
    }
    let devices: Vec<String> = group.all_gather_object(&device.to_string())?;
    let kind = |device: &String| device.split(':').next().unwrap_or_default().to_string();
    if let Some(rank) = (1..devices.len()).find(|rank| kind(&devices[*rank]) != kind(&devices[0])) {
        console.warn(&format!(
            "this world mixes devices (rank 0 has {}, rank {rank} {}): the mathematics is the same, but every step waits for the slowest rank",
            devices[0], devices[rank]
        ));
    }
    let cuda = Accelerator::Cuda.name();
    let some = devices.iter().any(|device| kind(device) == cuda);
    match wanted {
        Transport::Nccl => match group.attach(site(device))? {
            DevicePath::Nccl(library) => Ok(format!("nccl with {host} ({library})")),
            DevicePath::Host(why) => {
                bail!("--transport nccl: {why}. Leave the flag out to go through host memory")
            }
        },
        Transport::Auto if some => match group.attach(site(device))? {
            DevicePath::Nccl(library) => Ok(format!("nccl with {host} ({library})")),
            DevicePath::Host(why) => {
                console.warn(&format!(
                    "gradients go through host memory over {host}, not NCCL: {why}. Each step then copies all gradients to the host and back, and the GPUs wait meanwhile"
                ));
                Ok(format!("{host}, staged through host memory"))
            }
        },
        _ => Ok(host.into()),
    }
}

/// A device as NCCL sees it.
///
/// # Errors
/// If it is none for NCCL, or does not start.
#[cfg(feature = "cuda")]
pub fn site(device: LocalDevice) -> Result<Arc<dyn DeviceSite>, String> {
    match device {
        LocalDevice::Gpu(Accelerator::Cuda, index) => {
            let site = collective::cuda::CudaSite::new(index).map_err(|error| error.to_string())?;
            Ok(Arc::new(site))
        }
        other => Err(format!("its device is {other}, and NCCL is for NVIDIA GPUs")),
    }
}

/// A device as NCCL sees it.
///
/// # Errors
/// Always: this program was built without it.
#[cfg(not(feature = "cuda"))]
pub fn site(_: LocalDevice) -> Result<Arc<dyn DeviceSite>, String> {
    Err(Accelerator::Cuda.devices().err().unwrap_or_default())
}
