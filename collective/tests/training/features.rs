//! Cargo features: each enables what it needs in dependencies, without the root package.

use std::{env, process::Command};

/// Features of a dependency of `burn-ddp-collective` when only `features` are enabled.
fn features_of(dependency: &str, features: &str) -> Vec<String> {
    let cargo = env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["tree", "--offline", "--locked", "--edges", "no-dev", "--format", "{f}", "--depth", "0"])
        .args(["--package", "burn-ddp-collective", "--features", features])
        .args(["--invert", dependency])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("cargo");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().next().unwrap_or_default().split(',').map(str::to_owned).collect()
}

/// Otherwise CubeCL compiles kernels through LLVM, which this workspace replaces by a stub that returns errors.
#[test]
fn cuda_compiles_kernels_through_nvrtc() {
    let features = features_of("cubecl-cuda", "cuda");
    assert!(features.iter().any(|feature| feature == "cpp"), "{features:?}");
}
