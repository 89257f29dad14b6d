//! The GPUs, and the libraries that use them.

use super::{Finding, size};
use crate::device::{Accelerator, DeviceArg, gpus};
use collective::transport::nccl::Library;
use std::{
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Longest that `nvidia-smi` may take: it hangs with a broken driver.
const PATIENCE: Duration = Duration::from_secs(20);

pub(super) fn check(say: &mut impl FnMut(Finding)) {
    let gpus = gpus(DeviceArg::Auto);
    // Without one of NVIDIA's GPUs, nothing below is missed.
    let nvidia = gpus.as_ref().map_or(0, |gpus| if gpus.kind == Accelerator::Cuda { gpus.count } else { 0 });
    let (needed, several) = (nvidia > 0, nvidia > 1);
    match &gpus {
        Ok(gpus) => {
            say(Finding::ok("GPUs", format!("{} ({})", gpus.count, gpus.kind)));
            if needed {
                memory_of_gpus(say);
            }
        }
        Err(why) => say(Finding::note("GPUs", format!("none: {why}"), "training runs on the CPU")),
    }
    // What the transport itself would load.
    let nccl = Library::get().map(Library::version).map_err(|error| error.to_string());
    say(library("NCCL", nccl, needed, several, "install libnccl2, or put its folder on LD_LIBRARY_PATH"));
    toolkit(say);
}

/// What CUDA kernels are compiled with, and whether GPUs run them.
#[cfg(feature = "cuda")]
fn toolkit(say: &mut impl FnMut(Finding)) {
    use collective::cuda::{Toolkit, driver_device_count, probe};
    let count = match driver_device_count() {
        Ok(count) if count > 0 => count,
        Ok(_) => return say(Finding::note("NVRTC", "not used", "only NVIDIA GPUs need it")),
        Err(error) => return say(Finding::note("NVRTC", error.to_string(), "only NVIDIA GPUs need it")),
    };
    let toolkit = match Toolkit::get() {
        Ok(toolkit) => toolkit,
        Err(error) => return say(broken("CUDA toolkit", &error.to_string())),
    };
    say(Finding::ok("CUDA driver", format!("supports CUDA {}", toolkit.driver())));
    say(Finding::ok("NVRTC", format!("{} ({})", toolkit.nvrtc(), toolkit.nvrtc_path().display())));
    say(Finding::ok("CUDA headers", toolkit.include().display().to_string()));
    for lost in toolkit.lost() {
        let (found, advice) = lost.split_once("; ").unwrap_or((lost, "install the CUDA toolkit"));
        say(Finding::note("CUDA headers", found, advice));
    }
    for index in 0..count {
        say(match probe(index) {
            Ok(()) => Finding::ok("GPU test", format!("cuda:{index} runs a kernel")),
            Err(error) => broken("GPU test", &error.to_string()),
        });
    }
}

#[cfg(not(feature = "cuda"))]
fn toolkit(say: &mut impl FnMut(Finding)) {
    say(Finding::note("NVRTC", "this program was built without CUDA", "only NVIDIA GPUs need it"));
}

/// An error whose last part says what to do.
#[cfg(feature = "cuda")]
fn broken(name: &'static str, error: &str) -> Finding {
    let (found, advice) = error.rsplit_once("; ").unwrap_or((error, "see the book's page on GPUs"));
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

/// Name, memory and driver, as `nvidia-smi` tells them.
fn memory_of_gpus(say: &mut impl FnMut(Finding)) {
    let fields = "index,name,memory.free,memory.total,driver_version";
    let args = [format!("--query-gpu={fields}"), "--format=csv,noheader,nounits".into()];
    let Some(text) = output("nvidia-smi", &args) else {
        let advice = "the driver works, but its tool nvidia-smi does not answer";
        return say(Finding::note("GPU memory", "unknown", advice));
    };
    for line in text.lines() {
        say(gpu(line));
    }
}

/// One line of `nvidia-smi`'s table; sizes in MiB.
fn gpu(line: &str) -> Finding {
    let fields: Vec<&str> = line.split(',').map(str::trim).collect();
    let [index, name, free, total, driver] = fields[..] else {
        return Finding::note("GPU memory", line, "nvidia-smi says something unexpected");
    };
    let (Ok(free), Ok(total)) = (free.parse::<u64>(), total.parse::<u64>()) else {
        return Finding::ok("GPU memory", format!("{index}: {name}, driver {driver}"));
    };
    let found =
        format!("{index}: {name}, {} free of {}, driver {driver}", size(free << 20), size(total << 20));
    if free < 1024 {
        Finding::fail("GPU memory", found, "other programs hold its memory: see nvidia-smi")
    } else {
        Finding::ok("GPU memory", found)
    }
}

/// What a program prints, if it ends well and soon.
fn output(program: &str, args: &[String]) -> Option<String> {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().ok()?;
    let until = Instant::now() + PATIENCE;
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
    fn nvidia_smis_lines_are_read() {
        let good = gpu("0, NVIDIA H200, 143000, 143771, 570.1");
        assert_eq!(good.verdict, Verdict::Ok);
        assert_eq!(good.found, "0: NVIDIA H200, 139.6 GiB free of 140.4 GiB, driver 570.1");
        assert!(matches!(gpu("0, NVIDIA H200, 3, 143771, 570.1").verdict, Verdict::Fail(_)));
        assert!(matches!(gpu("rubbish").verdict, Verdict::Note(_)));
    }
}
