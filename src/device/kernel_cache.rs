//! Persistent cache of compiled CUDA kernels and tuning results.
//!
//! CubeCL stores both in an SQLite database in WAL mode, so that several ranks may use it concurrently. Its keys
//! contain the GPU's architecture and index, but neither its model nor the versions of driver and NVRTC. The
//! folder's name contains those. The driver's cache of what it compiles from CubeCL's kernels is in the same folder.

use crate::process::atomic_file;
use anyhow::{Context, Result};
use collective::cuda::Toolkit;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig};
use std::{
    env, fs, io,
    path::{self, Path, PathBuf},
};

/// Environment variable with the folder of the cache, or `off`.
///
/// Default: `burn-ddp/kernels` in the user's cache folder.
pub const FOLDER: &str = "BURN_DDP_KERNEL_CACHE";

/// Returns the folder of this machine's caches.
///
/// Returns `None` if caching is off or the user has no cache folder.
pub fn folder() -> Option<PathBuf> {
    let folder = match env::var_os(FOLDER) {
        Some(off) if off == "off" => return None,
        Some(folder) if !folder.is_empty() => folder.into(),
        Some(_) | None => dirs::cache_dir()?.join("burn-ddp/kernels"),
    };
    Some(of_machine(folder.clone(), file_system(&folder), &collective::host()))
}

/// Environment variable with the folder of the driver's own cache.
///
/// CubeCL's kernels are PTX, which the driver compiles for the GPU when it loads them. It reads the variable when it is
/// initialised. Its default folder, `~/.nv/ComputeCache`, is not kept with this cache.
pub const DRIVER_FOLDER: &str = "CUDA_CACHE_PATH";

/// The folder in this machine's caches for what the driver compiles.
pub fn driver_folder() -> Option<PathBuf> {
    Some(folder()?.join("driver"))
}

/// Adds the machine's name on a network file system: SQLite's WAL mode needs memory that all processes share.
fn of_machine(folder: PathBuf, file_system: u32, host: &str) -> PathBuf {
    if NETWORK_FILE_SYSTEMS.contains(&file_system) { folder.join(slug(host)) } else { folder }
}

/// Numbers of the file systems that several machines may share, as in Linux's `magic.h` and statfs(2).
const NETWORK_FILE_SYSTEMS: [u32; 16] = [
    0x6969,      // NFS
    0x517B,      // SMB
    0xFE53_4D42, // SMB 2
    0xFF53_4D42, // CIFS
    0x0102_1997, // 9P
    0x00C3_6400, // Ceph
    0x0BD0_0BD0, // Lustre
    0x4750_4653, // GPFS
    0x1983_0326, // BeeGFS
    0x2003_0528, // OrangeFS
    0xAAD7_AAEA, // PanFS
    0x5346_414F, // AFS
    0x6B41_4653, // AFS of the kernel
    0x7461_636F, // OCFS2
    0x0116_1970, // GFS2
    0x6573_5546, // FUSE: sshfs, GlusterFS and others
];

/// The number of the file system that holds `folder`, or will when it is created; 0 if it is unknown.
fn file_system(folder: &Path) -> u32 {
    let folder = path::absolute(folder).unwrap_or_default();
    let found = folder.ancestors().find_map(|folder| rustix::fs::statfs(folder).ok());
    found.map_or(0, |found| found.f_type as u32)
}

/// Enables the cache, and returns whether it is enabled.
///
/// Call it before the first use of a GPU, because CubeCL reads its configuration once. A `cubecl.toml` or
/// `burn.toml` that sets another folder has precedence.
///
/// # Errors
/// If the CUDA driver or NVRTC cannot be queried.
pub fn enable() -> Result<bool> {
    let Some(folder) = folder() else { return Ok(false) };
    if let Some(driver) = driver_folder()
        && env::var_os(DRIVER_FOLDER).is_some_and(|set| set == driver)
    {
        // Without the folder, the driver compiles in every process.
        let _ = fs::create_dir_all(driver);
    }
    let folder = folder.join(environment()?);
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Directory(folder);
    }
    // Returns false if this process already has a configuration, for example from an earlier call.
    CubeClRuntimeConfig::try_set(config);
    Ok(true)
}

/// Returns the cache key of this machine, such as `nvidia-h100-80gb-hbm3-driver-13.0-nvrtc-13.0`.
///
/// # Errors
/// If the CUDA driver or NVRTC cannot be queried.
pub fn environment() -> Result<String> {
    let mut names: Vec<String> =
        collective::cuda::devices()?.into_iter().map(|gpu| slug(&gpu.name)).collect();
    names.dedup();
    let toolkit = Toolkit::get()?;
    // Tuning skips kernels whose headers are missing.
    let headers = if toolkit.lost.is_empty() { "" } else { "-few-headers" };
    Ok(format!("{}-driver-{}-nvrtc-{}{headers}", names.join("+"), toolkit.driver, toolkit.nvrtc))
}

/// Converts to lower-case letters and digits, separated by `-`.
fn slug(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.map(str::to_ascii_lowercase).collect::<Vec<_>>().join("-")
}

/// Returns the size of all files in bytes; 0 if the folder does not exist.
///
/// # Errors
/// If the folder cannot be read.
pub fn size(folder: &Path) -> Result<u64> {
    fn of(folder: &Path) -> io::Result<u64> {
        let mut bytes = 0;
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let kind = entry.metadata()?;
            bytes += if kind.is_dir() { of(&entry.path())? } else { kind.len() };
        }
        Ok(bytes)
    }
    match of(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        read => read.with_context(|| format!("kernel cache {}: cannot be read", folder.display())),
    }
}

/// Deletes the cache.
///
/// # Errors
/// If it cannot be deleted.
pub fn clear(folder: &Path) -> Result<()> {
    atomic_file::remove(folder)
        .with_context(|| format!("kernel cache {}: cannot be deleted", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_not_there_is_empty_and_can_be_cleared() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let cache = folder.path().join("kernels");
        assert_eq!(size(&cache)?, 0);
        clear(&cache)?;
        fs::create_dir_all(cache.join("gpu"))?;
        fs::write(cache.join("gpu/default.db"), [0; 300])?;
        fs::write(cache.join("x"), [0; 5])?;
        assert_eq!(size(&cache)?, 305);
        clear(&cache)?;
        assert!(!cache.exists());
        Ok(())
    }

    /// A WAL database must not be used from several machines.
    #[test]
    fn machines_share_no_cache_on_a_network_file_system() {
        let folder = || PathBuf::from("/home/you/.cache/burn-ddp/kernels");
        let (nfs, lustre, ext4) = (0x6969, 0x0BD0_0BD0, 0xEF53);
        assert_eq!(of_machine(folder(), nfs, "gpu-01.cluster"), folder().join("gpu-01-cluster"));
        assert_eq!(of_machine(folder(), lustre, "a"), folder().join("a"));
        assert_eq!(of_machine(folder(), ext4, "a"), folder());
        assert_eq!(of_machine(folder(), 0, "a"), folder());
    }

    #[test]
    fn the_file_system_of_a_folder_that_is_not_there_is_its_parents() {
        const PROC: u32 = 0x9fa0;
        assert_eq!(file_system(Path::new("/proc/no/such/folder")), PROC);
    }

    #[test]
    fn gpu_names_become_folder_names() {
        assert_eq!(slug("NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3");
        assert_eq!(slug("Tesla/../V100"), "tesla-v100");
    }
}
