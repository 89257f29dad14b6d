//! CUDA's headers, which NVRTC needs for half precision, tensor cores and asynchronous copies.

use crate::{Error, Result};
use burn_ddp_comm::python;
use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

/// Environment variable with the toolkit's folder.
const VARIABLE: &str = "CUDA_PATH";
/// A header that every package of headers contains.
const REQUIRED: &str = "cuda_runtime.h";
/// Folders that CubeCL tries without the variable: a path that must exist, and the toolkit's folder.
const FOLDERS: [(&str, &str); 3] =
    [("/usr/local/cuda", "/usr/local/cuda"), ("/opt/cuda", "/opt/cuda"), ("/usr/bin/nvcc", "/usr")];
/// Toolkits in a Python environment: wheels below `site-packages`, then conda's below the prefix.
const WHEELS: [&str; 2] = ["nvidia/cu13", "nvidia/cuda_runtime"];
const CONDA: [&str; 3] = ["targets/x86_64-linux", "targets/sbsa-linux", "."];

/// Headers that only some kernels include.
struct Optional {
    headers: &'static [&'static str],
    kernels: &'static str,
    packages: &'static str,
}

const OPTIONAL: [Optional; 2] = [
    Optional {
        headers: &["mma.h", "crt/mma.h"],
        kernels: "tensor-core kernels",
        packages: "conda: cuda-crt, pip: nvidia-cuda-crt, apt: cuda-crt-13-0 or cuda-nvcc-12-8",
    },
    Optional {
        headers: &["nv/target", "cuda/barrier"],
        kernels: "kernels with asynchronous copies or clusters",
        packages: "conda: cuda-cccl, pip: nvidia-cuda-cccl, apt: cuda-cccl-13-0 or cuda-cccl-12-8",
    },
];

/// The folder of headers that CubeCL passes to NVRTC, without which CubeCL panics.
///
/// # Errors
/// If there is none, or it has no headers.
pub(super) fn find() -> Result<PathBuf> {
    let toolkit = env::var_os(VARIABLE);
    find_in(toolkit, |path| path.exists(), || elsewhere(&python::environments()))
}

fn find_in(
    toolkit: Option<OsString>,
    exists: impl Fn(&Path) -> bool,
    elsewhere: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf> {
    let default = || FOLDERS.iter().find(|(sign, _)| exists(Path::new(sign))).map(|(_, path)| path.into());
    let found: Option<PathBuf> = toolkit.as_ref().map(PathBuf::from).or_else(default);
    if let Some(toolkit) = &found
        && !toolkit.as_os_str().is_empty()
        && toolkit.to_str().is_some()
        && exists(&toolkit.join("include").join(REQUIRED))
    {
        return Ok(toolkit.join("include"));
    }
    let what = match (&toolkit, &found) {
        (Some(path), _) if path.is_empty() => format!("{VARIABLE} is empty"),
        (Some(path), _) => format!("{VARIABLE}={} has no include/{REQUIRED}", path.display()),
        (None, Some(path)) => format!("{} has no include/{REQUIRED}", path.display()),
        (None, None) => {
            let signs = FOLDERS.map(|(sign, _)| sign).join(", ");
            format!("CUDA's headers were not found ({VARIABLE} is not set, and there is no {signs})")
        }
    };
    let todo = match elsewhere() {
        Some(toolkit) => format!("set {VARIABLE}={}", toolkit.display()),
        None => format!(
            "install the CUDA toolkit or its headers (conda: cuda-cudart-dev, pip: nvidia-cuda-runtime, apt: \
             cuda-cudart-dev-13-0 or cuda-cudart-dev-12-8), and let {VARIABLE} name the folder that has include/"
        ),
    };
    Err(Error::Invalid(format!("{what}; {todo}")))
}

/// A toolkit in one of these Python environments.
fn elsewhere(environments: &[PathBuf]) -> Option<PathBuf> {
    let mut toolkits = python::wheel_folders(environments, &WHEELS);
    toolkits.extend(environments.iter().flat_map(|prefix| CONDA.map(|part| prefix.join(part))));
    toolkits.into_iter().find(|toolkit| toolkit.join("include").join(REQUIRED).is_file())
}

/// Kinds of kernels that cannot be compiled with the headers in `include`, and what to install.
pub(super) fn lost(include: &Path) -> Vec<String> {
    // CubeCL adds this folder if it exists.
    let folders = [include.to_path_buf(), include.join("cccl")];
    let there = |header: &&str| folders.iter().any(|folder| folder.join(header).is_file());
    let mut lost = Vec::new();
    for Optional { headers, kernels, packages } in &OPTIONAL {
        let missing: Vec<&str> = headers.iter().filter(|header| !there(header)).copied().collect();
        if !missing.is_empty() {
            lost.push(format!("{kernels} are not used: {} missing; install {packages}", missing.join(", ")));
        }
    }
    lost
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn touch(folder: &Path, headers: &[&str]) {
        for header in headers {
            let path = folder.join(header);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
    }

    fn error(toolkit: Option<&str>, existing: &[&str]) -> String {
        let exists = |path: &Path| existing.iter().any(|known| path == Path::new(known));
        find_in(toolkit.map(OsString::from), exists, || None).unwrap_err().to_string()
    }

    #[test]
    fn the_folder_that_cubecl_takes_is_found() {
        let exists = |path: &Path| {
            ["/opt/cuda", "/opt/cuda/include/cuda_runtime.h"].iter().any(|p| path == Path::new(p))
        };
        assert_eq!(find_in(None, exists, || None).unwrap(), Path::new("/opt/cuda/include"));
        let nvcc = |path: &Path| {
            ["/usr/bin/nvcc", "/usr/include/cuda_runtime.h"].iter().any(|p| path == Path::new(p))
        };
        assert_eq!(find_in(None, nvcc, || None).unwrap(), Path::new("/usr/include"));
    }

    #[test]
    fn missing_headers_are_named() {
        assert!(error(None, &[]).contains("CUDA_PATH is not set"));
        assert!(error(None, &["/opt/cuda"]).starts_with("/opt/cuda has no include/cuda_runtime.h"));
        assert!(error(Some(""), &["/opt/cuda"]).starts_with("CUDA_PATH is empty"));
        assert!(error(Some("/x"), &["/opt/cuda"]).starts_with("CUDA_PATH=/x has no include/cuda_runtime.h"));
        assert!(error(None, &[]).contains("nvidia-cuda-runtime"));
    }

    #[test]
    fn headers_of_a_wheel_are_offered() {
        let prefix = tempfile::tempdir().unwrap();
        let toolkit = prefix.path().join("lib/python3.12/site-packages/nvidia/cu13");
        touch(&toolkit.join("include"), &[REQUIRED]);
        let found = elsewhere(&[prefix.path().to_path_buf()]);
        assert_eq!(found.as_ref(), Some(&toolkit));
        let error = find_in(None, |_| false, || found.clone()).unwrap_err().to_string();
        assert!(error.ends_with(&format!("; set CUDA_PATH={}", toolkit.display())), "{error}");
    }

    #[test]
    fn missing_headers_cost_kernels() {
        let include = tempfile::tempdir().unwrap();
        touch(include.path(), &[REQUIRED, "mma.h"]);
        let all = lost(include.path());
        assert_eq!(all.len(), 2);
        assert!(all[0].contains("tensor-core kernels are not used: crt/mma.h missing"), "{all:?}");
        assert!(all[1].contains("nv/target, cuda/barrier missing"), "{all:?}");
        touch(include.path(), &["crt/mma.h", "cccl/nv/target", "cccl/cuda/barrier"]);
        assert!(lost(include.path()).is_empty());
    }
}
