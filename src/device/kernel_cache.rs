//! Persistent cache of compiled CUDA kernels and tuning results.
//!
//! CubeCL stores both in an SQLite database in WAL mode, so that several ranks may use it concurrently. Its keys
//! contain the GPU's architecture and index, but neither its model nor the versions of driver and NVRTC. The
//! folder's name contains those.

use anyhow::{Context, Result};
use collective::cuda::Toolkit;
use cubecl::config::{CubeClRuntimeConfig, RuntimeConfig, cache::CacheConfig};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Environment variable with the folder of the cache, or `off`.
///
/// Default: `burn-ddp/kernels` in the user's cache folder.
pub const FOLDER: &str = "BURN_DDP_KERNEL_CACHE";

/// Returns the folder of all caches.
///
/// Returns `None` if caching is off or the user has no cache folder.
pub fn folder() -> Option<PathBuf> {
    match env::var_os(FOLDER) {
        Some(off) if off == "off" => None,
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        Some(_) | None => Some(dirs::cache_dir()?.join("burn-ddp/kernels")),
    }
}

/// Enables the cache.
///
/// Call it before the first use of a GPU, because CubeCL reads its configuration once. A `cubecl.toml` or
/// `burn.toml` that sets another folder has precedence.
///
/// # Errors
/// If the CUDA driver or NVRTC cannot be queried.
pub fn enable() -> Result<()> {
    let Some(folder) = folder() else { return Ok(()) };
    let folder = folder.join(environment()?);
    let mut config = CubeClRuntimeConfig::from_current_dir().override_from_env();
    config.compilation.cache = true;
    if matches!(config.environment.path, CacheConfig::Target) {
        config.environment.path = CacheConfig::Directory(folder);
    }
    // Returns false if this process already has a configuration, for example from an earlier call.
    CubeClRuntimeConfig::try_set(config);
    Ok(())
}

/// Returns the cache key of this machine, such as `nvidia-h100-80gb-hbm3-driver-13.0-nvrtc-13.0`.
fn environment() -> Result<String> {
    let mut names: Vec<String> =
        collective::cuda::devices()?.into_iter().map(|gpu| slug(&gpu.name)).collect();
    names.dedup();
    let toolkit = Toolkit::get()?;
    // Tuning skips kernels whose headers are missing.
    let headers = if toolkit.lost().is_empty() { "" } else { "-few-headers" };
    Ok(format!("{}-driver-{}-nvrtc-{}{headers}", names.join("+"), toolkit.driver(), toolkit.nvrtc()))
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
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed.with_context(|| format!("kernel cache {}: cannot be deleted", folder.display())),
    }
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

    #[test]
    fn gpu_names_become_folder_names() {
        assert_eq!(slug("NVIDIA H100 80GB HBM3"), "nvidia-h100-80gb-hbm3");
        assert_eq!(slug("Tesla/../V100"), "tesla-v100");
    }
}
