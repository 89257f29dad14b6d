//! Finding and loading NCCL, when somebody asks for it and not before.

use super::api::{Api, Code, Comm, SUCCESS, UniqueId};
use crate::{Error, Result};
use std::{
    env,
    ffi::{CStr, OsStr, c_char, c_int},
    fmt,
    path::{Path, PathBuf},
    ptr,
    sync::OnceLock,
};

/// Names the library file, or the folder it is in; nothing else is tried then.
pub const VARIABLE: &str = "BURN_DDP_NCCL";
/// What distributions and wheels ship, then what their development packages add.
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];
/// The first version whose calls can be made without blocking.
const OLDEST: c_int = 21_400;
/// Where toolkits put it that do not tell the linker.
const FOLDERS: [&str; 7] = [
    "/usr/local/cuda/lib64",
    "/usr/local/lib",
    "/usr/local/nccl/lib",
    "/opt/nvidia/nccl/lib",
    "/opt/cuda/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
];

/// A loaded NCCL. It is never unloaded, because its threads may outlive what used it.
pub struct Library {
    pub(super) api: Api,
    version: c_int,
    path: PathBuf,
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NCCL {} ({})", self.version(), self.path.display())
    }
}

impl Library {
    /// This process's NCCL, looked for at the first call: what [`VARIABLE`] names, or
    /// `libnccl.so.2` and `libnccl.so` as the linker finds them, in Python's wheels, and in the usual
    /// folders of toolkits.
    ///
    /// # Errors
    /// With everything that was tried and why each did not do.
    pub fn get() -> Result<&'static Library> {
        static LIBRARY: OnceLock<Result<&'static Library>> = OnceLock::new();
        LIBRARY.get_or_init(|| Self::first_of(&candidates())).clone()
    }

    /// The first of `paths` that can be used.
    ///
    /// # Errors
    /// With every one of them and why it did not do.
    pub fn first_of(paths: &[PathBuf]) -> Result<&'static Library> {
        let mut tried = Vec::new();
        for path in paths {
            match Self::load(path) {
                Ok(library) => return Ok(Box::leak(Box::new(library))),
                Err(reason) => tried.push(format!("{}: {reason}", path.display())),
            }
        }
        Err(Error::Invalid(format!(
            "NCCL was not found; install it (libnccl2, or pip install nvidia-nccl-cu12), or let {VARIABLE} name the file. Tried {}",
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
            return Err(format!("ncclGetVersion answers {code}"));
        }
        if version < OLDEST {
            return Err(format!("it is NCCL {}, and {} is needed", dotted(version), dotted(OLDEST)));
        }
        std::mem::forget(library);
        Ok(Library { api, version, path: path.to_path_buf() })
    }

    /// Such as `2.21.5`.
    pub fn version(&self) -> String {
        dotted(self.version)
    }

    /// As the linker was given it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What a new communicator's ranks must share; made by one of them.
    ///
    /// # Errors
    /// NCCL's own.
    pub fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; UniqueId::SIZE]);
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
        let hint = " (NCCL_DEBUG=INFO says more)";
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

/// What the linker says, without the name that precedes it anyway.
fn reason(path: &Path, error: &libloading::Error) -> String {
    if path.is_absolute() && !path.exists() {
        return "no such file".into();
    }
    let text = std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string);
    text.trim_start_matches(&format!("{}: ", path.display())).to_string()
}

/// Where it may be, best first.
fn candidates() -> Vec<PathBuf> {
    if let Some(named) = env::var_os(VARIABLE).filter(|name| !name.is_empty()) {
        let named = PathBuf::from(named);
        return if named.is_dir() { NAMES.map(|name| named.join(name)).into() } else { vec![named] };
    }
    let mut found: Vec<PathBuf> = NAMES.map(PathBuf::from).into();
    let folders = wheels(&prefixes()).into_iter().chain(FOLDERS.map(PathBuf::from));
    // Of these only what is there, so that an error stays readable.
    found.extend(folders.flat_map(|folder| NAMES.map(|name| folder.join(name))).filter(|path| path.exists()));
    found
}

/// Where Pythons are installed, without running one.
fn prefixes() -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(env::var_os).map(PathBuf::from).collect();
    let path = env::var_os("PATH").unwrap_or_default();
    let bins = env::split_paths(&path).filter(|bin| bin.join("python3").exists());
    // A link leads from an environment to the Python it was made with; both may have the wheel.
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

/// Folders of the wheels `nvidia-nccl-cu*` under these prefixes.
fn wheels(prefixes: &[PathBuf]) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for lib in prefixes.iter().flat_map(|prefix| ["lib", "lib64"].map(|lib| prefix.join(lib))) {
        let Ok(entries) = lib.read_dir() else { continue };
        let mut pythons: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        pythons.retain(|path| {
            path.file_name().and_then(OsStr::to_str).is_some_and(|n| n.starts_with("python3"))
        });
        pythons.sort();
        for packages in pythons.iter().flat_map(|p| ["site-packages", "dist-packages"].map(|s| p.join(s))) {
            folders.extend(["nvidia/nccl/lib", "nvidia/cu13/lib"].map(|wheel| packages.join(wheel)));
        }
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_nccl_codes_them() {
        assert_eq!(dotted(21_400), "2.14.0");
        assert_eq!(dotted(22_105), "2.21.5");
    }

    #[test]
    fn wheels_are_found_under_a_prefix() {
        let prefix = tempfile::tempdir().unwrap();
        let folder = prefix.path().join("lib/python3.12/site-packages/nvidia/nccl/lib");
        std::fs::create_dir_all(&folder).unwrap();
        assert!(wheels(&[prefix.path().to_path_buf()]).contains(&folder));
        assert!(wheels(&[prefix.path().join("nowhere")]).is_empty());
    }

    #[test]
    fn the_error_lists_what_was_tried_and_why() {
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
