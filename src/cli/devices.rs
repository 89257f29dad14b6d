//! `burn-ddp devices`: lists available devices and backends.

use crate::{
    device::{Accelerator, LocalDevice, gigabytes, host_memory},
    launch::cores,
    process::console::print_line,
};
use anyhow::Result;

/// Prints the list.
///
/// # Errors
/// If it cannot be written.
pub fn list() -> Result<()> {
    let memory = host_memory().map(|(free, total)| (free as usize, total as usize));
    row("cpu", &format!("{} core(s)", cores()), memory)?;
    let mut missing = Vec::new();
    for kind in Accelerator::ALL {
        match kind.devices() {
            Ok(found) if found.is_empty() => {
                missing.push((kind.name(), format!("no device for {kind} found")))
            }
            Ok(found) => {
                for (index, found) in found.iter().enumerate() {
                    let software = if found.software { " (software, on the CPU)" } else { "" };
                    let name = format!("{}{software}", found.name());
                    let device = LocalDevice::Gpu(kind, index);
                    row(&device.to_string(), &name, device.memory().ok().flatten())?;
                }
            }
            Err(reason) => missing.push((kind.name(), reason)),
        }
    }
    #[cfg(feature = "cuda")]
    toolkit()?;
    #[cfg(feature = "cuda")]
    match collective::transport::nccl::Library::get() {
        Ok(library) => print_line(&format!("nccl       {library}"))?,
        Err(error) => missing.push(("nccl", error.to_string())),
    }
    if !missing.is_empty() {
        print_line("\nnot available:")?;
    }
    missing.iter().try_for_each(|(name, why)| print_line(&format!("{name:<10} {why}")))
}

/// Prints NVRTC and the CUDA headers if there is a GPU.
///
/// Errors are omitted here: the list of GPUs contains them.
#[cfg(feature = "cuda")]
fn toolkit() -> Result<()> {
    use collective::cuda::{Toolkit, device_count};
    if !device_count().is_ok_and(|count| count > 0) {
        return Ok(());
    }
    let Ok(toolkit) = Toolkit::get() else { return Ok(()) };
    let (version, path) = (toolkit.nvrtc, toolkit.nvrtc_path.display());
    print_line(&format!("nvrtc      NVRTC {version} ({path}), driver for CUDA {}", toolkit.driver))?;
    print_line(&format!("headers    {}", toolkit.include.display()))?;
    toolkit.lost.iter().try_for_each(|lost| print_line(&format!("           {lost}")))
}

fn row(device: &str, name: &str, memory: Option<(usize, usize)>) -> Result<()> {
    let memory = memory.map_or_else(
        || "memory unknown".to_string(),
        |(free, total)| format!("{} of {} free", gigabytes(free), gigabytes(total)),
    );
    print_line(&format!("{device:<10} {name:<40} {memory}"))
}
