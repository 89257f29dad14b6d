//! Finds and loads NVRTC, CUDA's run-time compiler, before CubeCL does.
//!
//! CubeCL loads it through cudarc, by name, and panics if there is none. The linker finds a loaded library by its
//! `SONAME`, so that a library from a Python wheel that is loaded here is available to cudarc.

use super::CudaVersion;
use crate::{Error, Result};
use burn_ddp_comm::python;
use libloading::Library;
use std::{
    env,
    ffi::{CStr, OsStr, c_int, c_void},
    mem,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

/// The names that cudarc tries, in order.
const NAMES: [&str; 3] = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"];
/// Folders of toolkits that may be missing from the linker's search path.
const FOLDERS: [&str; 2] = ["/usr/local/cuda/lib64", "/opt/cuda/lib64"];
/// Folders of wheels below `site-packages`.
const WHEELS: [&str; 2] = ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"];

type VersionCall = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;

struct Found {
    library: Library,
    version: CudaVersion,
    path: PathBuf,
}

/// Loads NVRTC permanently. Returns its version and file.
///
/// # Errors
/// If there is none, or all are newer than the driver: CubeCL has NVRTC compile to PTX, which a driver loads
/// only if its version of CUDA is at least NVRTC's.
pub(super) fn load(driver: CudaVersion) -> Result<(CudaVersion, PathBuf)> {
    // A library in the linker's search path cannot be replaced, because cudarc uses the linker, too.
    if let Some(found) = NAMES.iter().find_map(|name| open(Path::new(name)).ok()) {
        return if found.version > driver { Err(too_new(&found, driver)) } else { Ok(keep(found)) };
    }
    let mut newest = None;
    let mut reasons = Vec::new();
    for path in candidates() {
        match open(&path) {
            Ok(found) if found.version > driver => newest = newest.or(Some(found)),
            Ok(found) => return loaded_for_cudarc(found),
            Err(reason) => reasons.push(format!("; {}: {reason}", path.display())),
        }
    }
    match newest {
        Some(found) => Err(too_new(&found, driver)),
        None => Err(Error::Invalid(format!(
            "CUDA's run-time compiler was not found (tried {}{}); install the CUDA toolkit {driver} or earlier, or pip \
             install {}, or put the folder of libnvrtc on LD_LIBRARY_PATH",
            NAMES.join(", "),
            reasons.concat(),
            wheel(driver),
        ))),
    }
}

/// The wheel of the newest NVRTC that this driver can use.
fn wheel(driver: CudaVersion) -> String {
    match driver.major {
        ..=12 => format!("nvidia-cuda-nvrtc-cu12=={driver}.*"),
        13 => format!("nvidia-cuda-nvrtc=={driver}.*"),
        14.. => "nvidia-cuda-nvrtc==13.*".into(),
    }
}

fn too_new(found: &Found, driver: CudaVersion) -> Error {
    Error::Invalid(format!(
        "NVRTC {} ({}) is newer than the driver's CUDA {driver}, which cannot load what it compiles; install a newer \
         NVIDIA driver, or NVRTC {driver} in its place (pip install {})",
        found.version,
        found.path.display(),
        wheel(driver),
    ))
}

/// Existing files outside the linker's search path, in order of preference.
fn candidates() -> Vec<PathBuf> {
    let environments = python::environments();
    let toolkit = env::var_os("CUDA_PATH").filter(|path| !path.is_empty()).map(PathBuf::from);
    let mut folders: Vec<PathBuf> =
        toolkit.iter().flat_map(|path| ["lib64", "lib"].map(|lib| path.join(lib))).collect();
    folders.extend(FOLDERS.map(PathBuf::from));
    folders.extend(python::wheel_folders(&environments, &WHEELS));
    // Conda environments.
    folders.extend(environments.iter().map(|prefix| prefix.join("lib")));
    let files = folders.iter().flat_map(|folder| NAMES.map(|name| folder.join(name)));
    files.filter(|file| file.is_file()).collect()
}

fn open(path: &Path) -> Result<Found, String> {
    // SAFETY: loading runs the library's initialisers; it is one that the user has installed under NVRTC's name.
    let library = unsafe { Library::new(path) }.map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the function has this type in every release (nvrtc.h), and writes two numbers.
    let (code, path) = unsafe {
        let call = library.get::<VersionCall>(b"nvrtcVersion\0").map_err(|_| "it has no nvrtcVersion")?;
        (call(&mut major, &mut minor), file_of(*call as *const c_void).unwrap_or_else(|| path.into()))
    };
    if code != 0 {
        return Err(format!("nvrtcVersion returned {code}"));
    }
    Ok(Found { library, version: CudaVersion { major, minor }, path })
}

/// The file of a loaded function.
fn file_of(function: *const c_void) -> Option<PathBuf> {
    // SAFETY: a structure of pointers, for which zeros are valid.
    let mut info: libc::Dl_info = unsafe { mem::zeroed() };
    // SAFETY: it writes the structure; the name in it lives as long as the library.
    let name = unsafe {
        let known = libc::dladdr(function, &mut info) != 0 && !info.dli_fname.is_null();
        known.then(|| CStr::from_ptr(info.dli_fname))?
    };
    let path = Path::new(OsStr::from_bytes(name.to_bytes()));
    Some(path.canonicalize().unwrap_or_else(|_| path.into()))
}

/// Keeps the library loaded.
fn keep(found: Found) -> (CudaVersion, PathBuf) {
    mem::forget(found.library);
    (found.version, found.path)
}

/// Keeps the library loaded, if cudarc finds it by name.
fn loaded_for_cudarc(found: Found) -> Result<(CudaVersion, PathBuf)> {
    load_builtins(&found);
    // SAFETY: it opens libraries by name and closes them again.
    if unsafe { cudarc::nvrtc::sys::is_culib_present() } {
        return Ok(keep(found));
    }
    let folder = found.path.parent().unwrap_or(&found.path).display();
    Err(Error::Invalid(format!(
        "NVRTC is in {folder}, which is not on the library search path; add it to LD_LIBRARY_PATH"
    )))
}

/// Loads NVRTC's second library, which it opens by name at its first compilation.
fn load_builtins(found: &Found) {
    let CudaVersion { major, minor } = found.version;
    let path = found.path.with_file_name(format!("libnvrtc-builtins.so.{major}.{minor}"));
    // SAFETY: as for NVRTC itself. Not every installation has it.
    if let Ok(library) = unsafe { Library::new(path) } {
        mem::forget(library);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_without_the_function_is_rejected() {
        let error = open(Path::new("libc.so.6")).err().unwrap();
        assert!(error.contains("nvrtcVersion"), "{error}");
    }

    #[test]
    fn wheels_are_no_newer_than_the_driver() {
        let driver = |major, minor| wheel(CudaVersion { major, minor });
        assert_eq!(driver(12, 8), "nvidia-cuda-nvrtc-cu12==12.8.*");
        assert_eq!(driver(13, 1), "nvidia-cuda-nvrtc==13.1.*");
    }

    #[test]
    fn files_of_functions_are_found() {
        let path = file_of(libc::getpid as *const c_void).unwrap();
        assert!(path.is_absolute() && path.to_string_lossy().contains("libc"), "{}", path.display());
    }
}
