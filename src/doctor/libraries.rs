//! GPUs, and the libraries that use them.

use super::Finding;
use crate::device::{Accelerator, DeviceArg, binary_size, gpus};
use collective::transport::nccl::Library;
use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Time limit of `nvidia-smi`, which hangs with a broken driver.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(20);

pub(super) fn check(report: &mut impl FnMut(Finding)) {
    let gpus = gpus(DeviceArg::Auto);
    // The libraries below are required only with an NVIDIA GPU.
    let nvidia = gpus.as_ref().map_or(0, |gpus| if gpus.kind == Accelerator::Cuda { gpus.count } else { 0 });
    let (needed, several) = (nvidia > 0, nvidia > 1);
    match &gpus {
        Ok(gpus) => {
            report(Finding::ok("GPUs", format!("{} ({})", gpus.count, gpus.kind)));
            if needed {
                memory_of_gpus(report);
            }
        }
        Err(why) => report(Finding::note("GPUs", format!("none: {why}"), "training runs on the CPU")),
    }
    // The same library that the transport loads.
    let nccl = Library::get().map(Library::version).map_err(|error| error.to_string());
    report(library("NCCL", nccl, needed, several, "install libnccl2, or add its folder to LD_LIBRARY_PATH"));
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
    report(Finding::ok("CUDA driver", format!("supports CUDA {}", toolkit.driver())));
    report(Finding::ok("NVRTC", format!("{} ({})", toolkit.nvrtc(), toolkit.nvrtc_path().display())));
    report(Finding::ok("CUDA headers", toolkit.include().display().to_string()));
    for lost in toolkit.lost() {
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

fn library(
    name: &'static str,
    version: Result<String, String>,
    wanted: bool,
    needed: bool,
    advice: &str,
) -> Finding {
    match version {
        Ok(version) => Finding::ok(name, version),
        Err(why) if needed => Finding::fail(name, why, advice),
        Err(why) if wanted => Finding::note(name, why, advice),
        Err(why) => Finding::note(name, why, "only GPUs need it"),
    }
}

/// Reports name, memory and driver of each GPU as printed by `nvidia-smi`.
fn memory_of_gpus(report: &mut impl FnMut(Finding)) {
    let fields = "index,name,memory.free,memory.total,driver_version";
    let args = [format!("--query-gpu={fields}"), "--format=csv,noheader,nounits".into()];
    let Some(text) = output("nvidia-smi", &args) else {
        let advice = "the driver works, but nvidia-smi fails or is missing";
        return report(Finding::note("GPU memory", "unknown", advice));
    };
    for line in text.lines() {
        report(gpu(line));
    }
}

/// Parses one line of `nvidia-smi`'s table, with sizes in MiB.
fn gpu(line: &str) -> Finding {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, name, free, total, driver] = fields[..] else {
        return Finding::note("GPU memory", line, "unexpected output of nvidia-smi");
    };
    let (Ok(free), Ok(total)) = (free.parse::<u64>(), total.parse::<u64>()) else {
        return Finding::ok("GPU memory", format!("{index}: {name}, driver {driver}"));
    };
    let found = format!(
        "{index}: {name}, {} free of {}, driver {driver}",
        binary_size(free << 20),
        binary_size(total << 20)
    );
    if free < 1024 {
        Finding::fail("GPU memory", found, "other programs use its memory: see nvidia-smi")
    } else {
        Finding::ok("GPU memory", found)
    }
}

/// Standard output of a program, or `None` if it fails or exceeds the time limit.
fn output(program: &str, args: &[String]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + NVIDIA_SMI_TIMEOUT;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > until {
            let _ = child.kill();
            let _ = child.wait();
            return None;
        }
        thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::Verdict;

    #[test]
    fn lines_of_nvidia_smi_are_parsed() {
        let good = gpu("0, NVIDIA H200, 143000, 143771, 570.1");
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(good.found, "0: NVIDIA H200, 139.6 GiB free of 140.4 GiB, driver 570.1");
        assert!(matches!(gpu("0, NVIDIA H200, 3, 143771, 570.1").verdict, Verdict::Fail(_)));
        assert!(matches!(gpu("rubbish").verdict, Verdict::Note(_)));
    }
}
