//! Finds and loads NCCL on first use.

use super::api::{Api, Code, Comm, SUCCESS, UniqueId};
use crate::{Error, Result, python};
use std::{
    env,
    ffi::{CStr, c_char, c_int},
    fmt,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

/// Environment variable with NCCL's file or folder; no other place is searched then.
pub const VARIABLE: &str = "BURN_DDP_NCCL_PATH";
/// File names of distributions and wheels, then of development packages.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The first version that has `ncclConfig_t` and `ncclCommFinalize`.
const OLDEST: c_int = 21_400;
/// Folders of toolkits that are not in the linker's search path.
const FOLDERS: [&str; 7] = [
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/opt/nvidia/nccl/lib",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// Folders of wheels below `site-packages`.
const WHEELS: [&str; 2] = ["nvidia/nccl/lib", "nvidia/cu13/lib"];

/// A loaded NCCL. It is never unloaded, because its threads may outlive what used it.
#[derive(Debug)]
pub struct Library {
    pub(super) api: Api,
    version: c_int,
    path: PathBuf,
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.version(), self.path.display())
    }
}

impl Library {
    /// This process's NCCL, loaded at the first call.
    ///
    /// It is the file in [`VARIABLE`], or `libnccl.so.2` or `libnccl.so` from the linker's search path,
    /// Python's wheels or the usual folders of toolkits.
    ///
    /// # Errors
    /// If none can be used. The error lists every file and its reason.
    pub fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<&'static Library>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::first_of(&candidates())).clone()
    }

    /// The first of `paths` that can be used.
    ///
    /// # Errors
    /// If none can be used. The error lists every file and its reason.
    pub fn first_of(paths: &[PathBuf]) -> Result<&'static Library> {
        let mut tried = Vec::new();
        for path in paths {
            match Self::load(path) {
                Ok(library) => return Ok(Box::leak(Box::new(library))),
                Err(reason) => tried.push(format!("{}: {reason}", path.display())),
            }
        }
        Err(Error::Invalid(format!(
            "NCCL was not found; install it (libnccl2, or pip install nvidia-nccl-cu12), or set {VARIABLE} to the file. Tried {}",
            tried.join("; ")
        )))
    }

    fn load(path: &Path) -> Result<Library, String> {
        // SAFETY: loading runs the library's initialisers; this is a library the user has installed
        // under NCCL's name, or has named.
        let library = unsafe { libloading::Library::new(path) }.map_err(|error| reason(path, &error))?;
        // SAFETY: the same, and it is leaked below.
        let api = unsafe { Api::load(&library) }?;
        let mut version = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (api.get_version)(&mut version) };
        if code != SUCCESS {
            return Err(format!("ncclGetVersion returned {code}"));
        }
        if version < OLDEST {
            return Err(format!("it is NCCL {}, but {} is required", dotted(version), dotted(OLDEST)));
        }
        std::mem::forget(library);
        Ok(Library { api, version, path: path.to_path_buf() })
    }

    /// Version, such as `2.21.5`.
    pub fn version(&self) -> String {
        dotted(self.version)
    }

    /// Creates the id that the ranks of a new communicator share.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId::default();
        // SAFETY: it writes the id.
        let code = unsafe { (self.api.get_unique_id)(&mut id) };
        self.check("make a unique id", code, ptr::null_mut()).map(|()| id)
    }

    /// An error if `code` is one. `comm` may be null.
    pub(super) fn check(&self, what: &str, code: Code, comm: Comm) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: both return text that lives as long as the library, or null.
        let (name, detail) =
            unsafe { (text((self.api.get_error_string)(code)), text((self.api.get_last_error)(comm))) };
        let detail = if detail.is_empty() { String::new() } else { format!(": {detail}") };
        let hint = " (NCCL_DEBUG=INFO shows details)";
        Err(Error::Io { what: format!("NCCL cannot {what}"), reason: format!("{name}{detail}{hint}") })
    }
}

/// Up to the end of its first line.
///
/// # Safety
/// Null, or a C string.
unsafe fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: as above.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    text.trim().lines().next().unwrap_or_default().to_string()
}

fn dotted(version: c_int) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// The linker's message, without the file name at its beginning.
fn reason(path: &Path, error: &libloading::Error) -> String {
    if path.is_absolute() && !path.exists() {
        return "no such file".into();
    }
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.trim_start_matches(&format!("{}: ", path.display())).to_string()
}

/// Candidate files, in order of preference.
fn candidates() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_dir() { NAMES.map(|name| named.join(name)).into() } else { vec![named] };
    }
    let mut found: Vec<PathBuf> = NAMES.map(PathBuf::from).into();
    let wheels = python::wheel_folders(&python::environments(), &WHEELS);
    let folders = wheels.into_iter().chain(FOLDERS.map(PathBuf::from));
    // Only existing files of these, so that the error stays short.
    found.extend(folders.flat_map(|folder| NAMES.map(|name| folder.join(name))).filter(|path| path.exists()));
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_lists_the_attempts_with_reasons() {
        let folder = tempfile::tempdir().unwrap();
        let (absent, broken) = (folder.path().join("absent.so"), folder.path().join("broken.so"));
        std::fs::write(&broken, b"no library").unwrap();
        let error = Library::first_of(&[absent.clone(), broken.clone(), "libc.so.6".into()]).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(&format!("{}: no such file", absent.display())), "{error}");
        assert!(error.contains(&format!("{}: ", broken.display())), "{error}");
        assert!(error.contains("libc.so.6: it has no ncclGetVersion"), "{error}");
        assert!(error.contains(VARIABLE), "{error}");
    }
}
