//! Python environments in which wheels install NVIDIA's libraries and headers.

use std::{
    env,
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// Finds Python environments: the active one, those of `python3` on `PATH`, the user's and the system's.
///
/// Python is not started.
pub fn environments() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let bins = env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    // An environment's `python3` is a link to the Python that created it; both may have the wheel.
    let pythons = bins.flat_map(|bin| {
        let real = bin.join("python3").canonicalize().ok().and_then(|real| real.parent().map(PathBuf::from));
        [Some(bin), real]
    });
    prefixes.extend(pythons.flatten().filter_map(|bin| bin.parent().map(PathBuf::from)));
    prefixes.extend(env::var_os("HOME").map(|home| PathBuf::from(home).join(".local")));
    prefixes.extend(["/usr/local", "/usr"].map(PathBuf::from));
    let mut seen = Vec::new();
    prefixes.retain(|prefix| !seen.contains(prefix) && (seen.push(prefix.clone()), true).1);
    prefixes
}

/// The existing folders among `wheels` below `site-packages` of the environments.
pub fn wheel_folders(environments: &[PathBuf], wheels: &[&str]) -> Vec<PathBuf> {
    let packages = environments.iter().flat_map(|prefix| site_packages(prefix));
    let folders = packages.flat_map(|packages| wheels.iter().map(move |wheel| packages.join(wheel)));
    folders.filter(|folder| folder.is_dir()).collect()
}

fn site_packages(prefix: &Path) -> Vec<PathBuf> {
    let mut pythons: Vec<PathBuf> = Vec::new();
    for lib in ["lib", "lib64"] {
        let Ok(entries) = prefix.join(lib).read_dir() else { continue };
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        found.retain(|path| {
            path.file_name().and_then(OsStr::to_str).is_some_and(|name| name.starts_with("python3"))
        });
        found.sort();
        pythons.extend(found);
    }
    pythons
        .iter()
        .flat_map(|python| ["site-packages", "dist-packages"].map(|part| python.join(part)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_wheels_are_found_in_an_environment() {
        let prefix = tempfile::tempdir().unwrap();
        let folder = prefix.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).unwrap();
        let wheels = ["nvidia/cu13/lib", "nvidia/nccl/lib"];
        assert_eq!(wheel_folders(&[prefix.path().to_path_buf()], &wheels), [folder]);
        assert!(wheel_folders(&[prefix.path().join("nowhere")], &wheels).is_empty());
    }
}
