//! The libcuda stand-in reports memory accesses that a GPU rejects.

use crate::stand_in::folder;
use std::{env, path::Path, process::Command};

/// Each error of `memory_errors.rs` with its report.
const ERRORS: [(&str, &str); 10] = [
    ("host-read", "the host accesses device memory"),
    ("host-write", "the host accesses device memory"),
    ("upload-out-of-bounds", "an upload of 128 bytes"),
    ("download-out-of-bounds", "a download of 128 bytes"),
    ("copy-out-of-bounds", "a copy on the device of 132 bytes"),
    ("kernel-out-of-bounds", "shift accesses device memory"),
    ("kernel-after-free", "shift accesses device memory"),
    ("copy-after-free", "a copy on the device of 128 bytes"),
    ("free-twice", "a free of 0 bytes"),
    ("division-by-zero", "shift divides an integer by zero"),
];

#[test]
fn memory_errors_are_reported() {
    let library = |name: &str| format!("link-arg={}", folder().join("lib").join(name).display());
    let temporary = tempfile::tempdir().expect("temporary folder");
    let program = temporary.path().join("memory_errors");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_stand_in/memory_errors.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "-C", &library("libcuda.so.1"), "-C", &library("libnvrtc.so"), "-o"])
        .args([&program, &source])
        .output()
        .expect("rustc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = |error: &str| {
        let mut command = Command::new(&program);
        command.arg(error).env("LD_LIBRARY_PATH", folder().join("lib"));
        command.env("CUDA_STAND_IN_CACHE", folder().join("kernels")).output().expect("the program was built")
    };
    let right = run("none");
    assert_eq!(
        (right.status.code(), right.stdout.as_slice(), right.stderr.as_slice()),
        (Some(0), &b"32\n"[..], &b""[..])
    );
    for (error, report) in ERRORS {
        let output = run(error);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(report),
            "{error}: {:?}, {stderr}",
            output.status
        );
    }
}
