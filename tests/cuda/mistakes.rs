//! The libcuda stand-in reports mistakes that a GPU and its driver reject.

use crate::stand_in::folder;
use std::{env, path::Path, process::Command};

/// Each mistake of `mistakes.rs` with its report.
const MISTAKES: [(&str, &str); 24] = [
    ("no-context", "cuModuleLoadData on a thread without a context"),
    ("context-of-another-thread", "cuStreamCreate on a thread without a context"),
    ("stream-of-another-context", "a kernel and the stream of its launch are of different contexts"),
    ("event-of-another-context", "an event is recorded in another context than its own"),
    ("destroyed-stream", "which does not exist"),
    ("memory-of-another-device", "shift accesses memory of another device"),
    ("large-grid", "status 1\n"),
    ("large-block", "status 1\n"),
    ("launch-bounds", "status 1\n"),
    ("no-threads", "status 1\n"),
    ("shared-memory-not-asked-for", "status 1\n"),
    ("much-shared-memory", "status 1\n"),
    ("allocation-in-a-collective", "the allocation waits for the collective"),
    ("host-read", "the host accesses device memory"),
    ("host-read-during-work", "the host accesses device memory"),
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
fn mistakes_are_reported() {
    let library = |name: &str| format!("link-arg={}", folder().join("lib").join(name).display());
    let temporary = tempfile::tempdir().expect("temporary folder");
    let program = temporary.path().join("mistakes");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda_stand_in/mistakes.rs");
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let built = Command::new(rustc)
        .args(["--edition", "2024", "-C", &library("libcuda.so.1"), "-C", &library("libnvrtc.so"), "-o"])
        .args([&program, &source])
        .output()
        .expect("rustc");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let run = |mistake: &str| {
        let mut command = Command::new(&program);
        command.arg(mistake).env("LD_LIBRARY_PATH", folder().join("lib"));
        command.env("CUDA_STAND_IN_DEVICES", "2").env("CUDA_STAND_IN_COMPUTE_CAPABILITY", "75");
        command.env("CUDA_STAND_IN_CACHE", folder().join("kernels")).output().expect("the program was built")
    };
    // A correct kernel adds 32 ones; one with tensor cores counts its wrong elements.
    for (right, sum) in [("none", "32\n"), ("tensor-cores", "0\n")] {
        let output = run(right);
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let found = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(found, (Some(0), sum.into(), String::new()), "{right}");
    }
    for (mistake, report) in MISTAKES {
        let output = run(mistake);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(
            !output.status.success() && stderr.contains(report),
            "{mistake}: {:?}, {stderr}",
            output.status
        );
    }
}
