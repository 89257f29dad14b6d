//! The GPUs, and the libraries that use them.

use super::{Finding, size};
use crate::{accelerator::Accelerator, cli::DeviceArg, device::gpus};
use collective::transport::nccl::Library;
use std::{
    ffi::{CString, c_int, c_void},
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
    let names = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];
    let nvrtc = nvrtc_version(&names).map(|[major, minor]| format!("{major}.{minor}"));
    let advice = "install the CUDA toolkit, or put the folder of libnvrtc on LD_LIBRARY_PATH";
    say(library("NVRTC", nvrtc, needed, needed, advice));
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

/// The address of `symbol` in the first library that is found. The library stays loaded.
fn symbol(names: &[&str], symbol: &std::ffi::CStr) -> Result<*mut c_void, String> {
    for name in names {
        let Ok(name) = CString::new(*name) else { continue };
        // SAFETY: both names end with a zero byte. Loading runs the library's own start-up code,
        // as the training will.
        let address = unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL);
            if library.is_null() {
                continue;
            }
            libc::dlsym(library, symbol.as_ptr())
        };
        if !address.is_null() {
            return Ok(address);
        }
        return Err(format!("{} has no {}", name.to_string_lossy(), symbol.to_string_lossy()));
    }
    Err(format!("not found (tried {})", names.join(", ")))
}

/// What `int nvrtcVersion(int*, int*)` gives.
fn nvrtc_version(names: &[&str]) -> Result<[c_int; 2], String> {
    let address = symbol(names, c"nvrtcVersion")?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function has this signature in every release (nvrtc.h).
    let code = unsafe {
        std::mem::transmute::<*mut c_void, extern "C" fn(*mut c_int, *mut c_int) -> c_int>(address)(
            &mut major, &mut minor,
        )
    };
    if code == 0 { Ok([major, minor]) } else { Err(format!("it answers with error {code}")) }
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

    #[test]
    fn a_library_that_is_not_there_is_named() {
        let error = symbol(&["libno-such-thing.so.7"], c"f").expect_err("not there");
        assert!(error.contains("libno-such-thing.so.7"), "{error}");
        // Every system has its C library.
        let error = symbol(&["libc.so.6"], c"no_such_function").expect_err("no such function");
        assert!(error.contains("no_such_function"), "{error}");
    }
}
