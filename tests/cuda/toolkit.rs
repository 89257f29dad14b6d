//! Missing or broken CUDA components cause an error before or during training, never a wrong result.

use crate::{
    common::Outcome,
    stand_in::{Machine, TINY, build, build_with},
};
use std::{fs, path::Path};

const SINGLE: &str = "--mode single --batch-size 24";

/// Trains; the run must fail with one error that contains `parts`.
#[track_caller]
fn fails(machine: &Machine, parts: &[&str]) -> Outcome {
    let folder = tempfile::tempdir().expect("temporary folder");
    let run = folder.path().join("run");
    let outcome = machine.train(&format!("--device cuda {TINY} {SINGLE} --run-dir {}", run.display()));
    let errors: Vec<&str> = outcome.stderr.lines().filter(|line| line.starts_with("error: ")).collect();
    let [error] = errors[..] else { panic!("not one error: {outcome:#?}") };
    for part in parts {
        assert!(error.contains(part), "{part}: {outcome:#?}");
    }
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert!(!outcome.stdout.contains("test accuracy"), "{outcome:#?}");
    outcome
}

/// [`fails`] without a panic.
#[track_caller]
fn fails_cleanly(machine: &Machine, parts: &[&str]) {
    let outcome = fails(machine, parts);
    assert!(!outcome.stderr.contains("panicked"), "{outcome:#?}");
}

/// A machine that compiles every kernel.
fn uncached() -> Machine {
    Machine::new(1).with("BURN_DDP_KERNEL_CACHE", "off")
}

fn toolkit(headers: &[&str]) -> tempfile::TempDir {
    let toolkit = tempfile::tempdir().expect("temporary folder");
    for header in headers {
        let path = toolkit.path().join("include").join(header);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(path, "").expect("a header");
    }
    toolkit
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn a_missing_toolkit_is_named() {
    let empty = toolkit(&[]);
    let machine = Machine::new(1).with("CUDA_PATH", text(empty.path()));
    fails_cleanly(&machine, &[text(empty.path()), "include/cuda_runtime.h", "nvidia-cuda-runtime"]);
}

#[test]
fn minimal_headers_suffice_with_a_warning() {
    let plain = toolkit(&["cuda_runtime.h", "mma.h"]);
    let machine = Machine::new(1).with("CUDA_PATH", text(plain.path()));
    let outcome = machine.run("devices").succeeded();
    for part in ["tensor-core kernels are not used: crt/mma.h missing", "nvidia-cuda-cccl", "NVRTC 13.0"] {
        assert!(outcome.stdout.contains(part), "{part}: {outcome:#?}");
    }
    let whole = toolkit(&["cuda_runtime.h", "mma.h", "crt/mma.h", "cccl/nv/target", "cccl/cuda/barrier"]);
    let outcome = machine.with("CUDA_PATH", text(whole.path())).run("devices").succeeded();
    assert!(!outcome.stdout.contains("not used"), "{outcome:#?}");
}

/// A folder with only the driver's stand-in.
fn driver_alone(machine: &Machine) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("temporary folder");
    let driver = Path::new(machine.value("LD_LIBRARY_PATH")).join("libcuda.so.1");
    fs::copy(driver, folder.path().join("libcuda.so.1")).expect("the driver");
    folder
}

#[test]
fn a_missing_nvrtc_is_named() {
    let machine = Machine::new(1);
    let folder = driver_alone(&machine);
    let machine = machine.with("LD_LIBRARY_PATH", text(folder.path()));
    fails_cleanly(
        &machine,
        &["libnvrtc.so, libnvrtc.so.13, libnvrtc.so.12", "pip install nvidia-cuda-nvrtc==13.0.*"],
    );
}

#[test]
fn nvrtc_is_found_in_a_wheel() {
    let machine = Machine::new(1);
    let folder = driver_alone(&machine);
    let prefix = tempfile::tempdir().expect("temporary folder");
    let wheel = prefix.path().join("lib/python3.12/site-packages/nvidia/cuda_nvrtc/lib");
    fs::create_dir_all(&wheel).expect("a folder");
    build("tests/cuda_stand_in/nvrtc.rs", &wheel.join("libnvrtc.so.12"));
    let machine = machine
        .with("LD_LIBRARY_PATH", text(folder.path()))
        .with("VIRTUAL_ENV", text(prefix.path()))
        .with("CUDA_STAND_IN_NVRTC", "12.8");
    let outcome = machine.run("devices").succeeded();
    assert!(outcome.stdout.contains(&format!("NVRTC 12.8 ({}", wheel.display())), "{outcome:#?}");
    // cudarc must find the same library.
    machine.trained(&format!("{TINY} {SINGLE} --max-steps 1"));
}

#[test]
fn nvrtc_newer_than_the_driver_is_rejected() {
    let machine = Machine::new(1).with("CUDA_STAND_IN_DRIVER", 12_080).with("CUDA_STAND_IN_NVRTC", "12.9");
    fails_cleanly(&machine, &["NVRTC 12.9", "driver's CUDA 12.8", "nvidia-cuda-nvrtc-cu12==12.8.*"]);
}

#[test]
fn an_old_driver_is_rejected() {
    fails_cleanly(&Machine::new(1).with("CUDA_STAND_IN_DRIVER", 11_080), &["CUDA 11.8", "12.0", "525"]);
}

/// A driver for CUDA 12.0 has no `cuEventElapsedTime_v2`, with which CUDA 12.8 and later measure kernels, and no events
/// of contexts.
#[test]
fn the_oldest_driver_trains_and_tunes() {
    let machine = Machine::new(2);
    let folder = tempfile::tempdir().expect("temporary folder");
    build_with("tests/cuda_stand_in/driver.rs", &folder.path().join("libcuda.so.1"), &["--cfg", "cuda_12_0"]);
    let libraries = format!("{}:{}", text(folder.path()), machine.value("LD_LIBRARY_PATH"));
    let cache = folder.path().join("cache");
    let machine = machine
        .with("LD_LIBRARY_PATH", libraries)
        .with("CUDA_STAND_IN_DRIVER", 12_000)
        .with("CUDA_STAND_IN_NVRTC", "12.0")
        .with("BURN_DDP_KERNEL_CACHE", text(&cache));
    machine.trained(&format!("{TINY} --nproc-per-node 2 --batch-size 12 --max-steps 2"));
    let measured = machine.with("CUDA_STAND_IN_TIMES", 1).with("BURN_DDP_KERNEL_CACHE", "off");
    measured.example("custom_loop", "--mode single --device cuda").succeeded();
}

#[test]
fn a_failing_probe_names_its_step() {
    for (setting, parts) in [
        ("FAIL_COMPILE", ["device cuda:0: NVRTC 13.0 does not compile the probe kernel", "refused by"]),
        ("FAIL_MODULE", ["device cuda:0: cannot load the probe kernel", "CUDA_ERROR_INVALID_IMAGE"]),
        ("FAIL_LAUNCH", ["device cuda:0: cannot launch the probe kernel", "CUDA_ERROR_LAUNCH_FAILED"]),
    ] {
        fails_cleanly(&uncached().with(&format!("CUDA_STAND_IN_{setting}"), 1), &parts);
    }
}

/// CubeCL catches the panic and drops the launch. The first 20 kernels only measure the device.
#[test]
fn a_panic_in_a_device_thread_ends_training() {
    let machine = uncached().with("CUDA_STAND_IN_BAD_LOG", 45);
    fails(&machine, &["device cuda:0: work was dropped after a panic in CubeCL"]);
}

#[test]
fn the_doctor_shows_the_toolkit() {
    let outcome = Machine::new(2).run("doctor");
    for line in [
        "ok    CUDA driver   supports CUDA 13.0",
        "ok    NVRTC         13.0 (",
        "ok    GPU test      cuda:1 runs a kernel",
    ] {
        assert!(outcome.stdout.contains(line), "{line}: {outcome:#?}");
    }
    let outcome = Machine::new(1).with("CUDA_STAND_IN_DRIVER", 11_080).run("doctor");
    assert_eq!(outcome.code, Some(1), "{outcome:#?}");
    assert!(outcome.stdout.contains("FAIL  CUDA toolkit"), "{outcome:#?}");
}
