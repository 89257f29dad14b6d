//! GPUs, the libraries that use them, and the cache of their compiled kernels.

use super::Finding;
use crate::device::{Accelerator, DeviceArg, LocalDevice, binary_size, gpus};
#[cfg(feature = "cuda")]
use crate::{device::kernel_cache, process::console::print_line};
use collective::transport::nccl::Library;

pub(super) fn check(report: &mut impl FnMut(Finding)) {
    let gpus = gpus(DeviceArg::Auto);
    // NCCL is required only with several NVIDIA GPUs.
    let nvidia = gpus.as_ref().map_or(0, |gpus| if gpus.kind == Accelerator::Cuda { gpus.count } else { 0 });
    match &gpus {
        Ok(gpus) => {
            report(Finding::ok("GPUs", format!("{} ({})", gpus.count, gpus.kind)));
            memory_of_gpus(gpus.kind, report);
        }
        Err(why) => report(Finding::note("GPUs", format!("none: {why}"), "training runs on the CPU")),
    }
    // The same library that the transport loads.
    let advice = "install libnccl2, or add its folder to LD_LIBRARY_PATH";
    report(match (Library::get(), nvidia) {
        (Ok(library), _) => Finding::ok("NCCL", library.version()),
        (Err(error), 0) => Finding::note("NCCL", error.to_string(), "only GPUs need it"),
        (Err(error), 1) => Finding::note("NCCL", error.to_string(), advice),
        (Err(error), _) => Finding::fail("NCCL", error.to_string(), advice),
    });
    toolkit(report);
}

/// Checks the toolkit that compiles CUDA kernels, and runs a kernel on each GPU.
#[cfg(feature = "cuda")]
fn toolkit(report: &mut impl FnMut(Finding)) {
    use collective::cuda::{Toolkit, driver_device_count, probe};
    let count = match driver_device_count() {
        Ok(count) if count > 0 => count,
        Ok(_) => return report(Finding::note("NVRTC", "not used", "only NVIDIA GPUs need it")),
        Err(error) => return report(Finding::note("NVRTC", error.to_string(), "only NVIDIA GPUs need it")),
    };
    let toolkit = match Toolkit::get() {
        Ok(toolkit) => toolkit,
        Err(error) => return report(broken("CUDA toolkit", &error.to_string())),
    };
    report(Finding::ok("CUDA driver", format!("supports CUDA {}", toolkit.driver)));
    report(Finding::ok("NVRTC", format!("{} ({})", toolkit.nvrtc, toolkit.nvrtc_path.display())));
    report(Finding::ok("CUDA headers", toolkit.include.display().to_string()));
    for lost in &toolkit.lost {
        let (found, advice) = lost.split_once("; ").unwrap_or((lost, "install the CUDA toolkit"));
        report(Finding::note("CUDA headers", found, advice));
    }
    for index in 0..count {
        report(match probe(index) {
            Ok(()) => Finding::ok("GPU test", format!("cuda:{index} runs a kernel")),
            Err(error) => broken("GPU test", &error.to_string()),
        });
    }
}

#[cfg(not(feature = "cuda"))]
fn toolkit(report: &mut impl FnMut(Finding)) {
    report(Finding::note("NVRTC", "this program was built without CUDA", "only NVIDIA GPUs need it"));
}

/// Converts an error whose last part is advice.
#[cfg(feature = "cuda")]
fn broken(name: &'static str, error: &str) -> Finding {
    let (found, advice) = error.rsplit_once("; ").unwrap_or((error, "see the chapter GPUs of the book"));
    Finding::fail(name, found, advice)
}

/// Reports name and memory of each GPU.
fn memory_of_gpus(kind: Accelerator, report: &mut impl FnMut(Finding)) {
    for (index, gpu) in kind.devices().unwrap_or_default().iter().enumerate() {
        let name = format!("{index}: {}", gpu.name());
        report(match LocalDevice::Gpu(kind, index).memory() {
            Ok(Some((free, total))) => memory(&name, free as u64, total as u64),
            Ok(None) => Finding::ok("GPU memory", name),
            Err(error) => Finding::fail("GPU memory", format!("{name}: {error:#}"), "see nvidia-smi"),
        });
    }
}

fn memory(name: &str, free: u64, total: u64) -> Finding {
    Finding::ok("GPU memory", format!("{name}, {} free of {}", binary_size(free), binary_size(total)))
        .fail_if(free < 1 << 30, "other programs use its memory: see nvidia-smi")
}

/// Folder and size of the cache of compiled CUDA kernels.
#[cfg(feature = "cuda")]
pub(super) fn kernel_cache() -> Finding {
    const NAME: &str = "kernel cache";
    let Some(folder) = kernel_cache::folder() else {
        let advice =
            format!("every run compiles its CUDA kernels; unset {} to keep them", kernel_cache::FOLDER);
        return Finding::note(NAME, "off", advice);
    };
    match kernel_cache::size(&folder) {
        Ok(bytes) => Finding::ok(NAME, format!("{} in {}", binary_size(bytes), folder.display())),
        Err(error) => Finding::note(
            NAME,
            format!("{error:#}"),
            format!("delete it, or set {} to another folder", kernel_cache::FOLDER),
        ),
    }
}

/// Deletes the kernel cache.
#[cfg(feature = "cuda")]
pub(super) fn clear_kernel_cache() -> anyhow::Result<()> {
    let Some(folder) = kernel_cache::folder() else {
        return print_line("the kernel cache is off");
    };
    let bytes = kernel_cache::size(&folder)?;
    kernel_cache::clear(&folder)?;
    print_line(&format!("deleted {} in {}", binary_size(bytes), folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::doctor::Verdict;

    #[test]
    fn a_gpu_without_free_memory_fails() {
        let good = memory("0: NVIDIA H200", 143_000 << 20, 143_771 << 20);
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(good.found, "0: NVIDIA H200, 139.6 GiB free of 140.4 GiB");
        assert!(matches!(memory("0: NVIDIA H200", 3 << 20, 143_771 << 20).verdict, Verdict::Fail(_)));
    }
}
