//! A store in a folder that all ranks can reach, a file for each key.
//!
//! The folder may be shared with other users: files are created exclusively with mode 0600, and a file
//! that another user owns is rejected.

use super::{Store, check_size};
use crate::{Error, Result};
use rand::RngExt;
use rustix::fs::OFlags;
use std::{
    fs::{self, Metadata, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{MetadataExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

/// Most bytes of one value.
const LIMIT: usize = 1 << 20;

/// A store in a folder of this machine or a network: PyTorch's `FileStore`.
///
/// Keys become file names. A value may have 1 MiB. The ranks must run as one user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileStore {
    folder: PathBuf,
}

impl FileStore {
    /// The store in `folder`, which must exist when a key is set.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        FileStore { folder: folder.into() }
    }

    /// The store and key that correspond to the file `path`.
    pub(crate) fn of_file(path: &Path) -> Result<(Self, String)> {
        let name = path.file_name().and_then(|name| name.to_str());
        match (path.parent(), name) {
            (Some(folder), Some(name)) => Ok((FileStore::new(folder), name.into())),
            _ => Err(Error::Invalid(format!(
                "the rendezvous file {} has no name; use file:///folder/name",
                path.display()
            ))),
        }
    }

    fn path(&self, key: &str) -> PathBuf {
        // Distinct keys give distinct names, none of which leads out of the folder.
        let name: String = key.replace('%', "%25").replace('/', "%2F").replace('\0', "%00");
        let name = if name.chars().all(|letter| letter == '.') { name.replace('.', "%2E") } else { name };
        self.folder.join(if name.is_empty() { "%".into() } else { name })
    }
}

impl Store for FileStore {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        check_size(value.len(), LIMIT)?;
        let path = self.path(key);
        let failed = |e| Error::io(format!("write the rendezvous file {}", path.display()), &e);
        // An unpredictable name: another user could have created a predictable one before.
        let mut temporary = path.clone().into_os_string();
        temporary.push(format!(".{:016x}", rand::rng().random::<u64>()));
        let write = || {
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&temporary)?;
            file.write_all(value)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)
        };
        write().map_err(|error| {
            // If it existed before, it is not ours to remove.
            if error.kind() != io::ErrorKind::AlreadyExists {
                let _ = fs::remove_file(&temporary);
            }
            failed(error)
        })
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        let path = self.path(key);
        let failed = |e| Error::io(format!("read the rendezvous file {}", path.display()), &e);
        // Neither follow a link nor block on a pipe.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                if let Ok(about) = fs::symlink_metadata(&path) {
                    check(&path, &about)?;
                }
                return Err(failed(error));
            }
        };
        check(&path, &file.metadata().map_err(failed)?)?;
        let mut value = Vec::new();
        file.take(LIMIT as u64 + 1).read_to_end(&mut value).map_err(failed)?;
        if value.len() > LIMIT {
            return Err(Error::Invalid(format!(
                "the rendezvous file {} is larger than {LIMIT} bytes; remove it, or choose another one",
                path.display()
            )));
        }
        Ok(Some(value))
    }

    fn delete(&self, key: &str) -> Result<()> {
        let path = self.path(key);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("remove the rendezvous file {}", path.display()), &error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }
}

/// Rejects files that another user could have written, which would lead to that user's server.
fn check(path: &Path, about: &Metadata) -> Result<()> {
    let own = rustix::process::geteuid().as_raw();
    if about.uid() != own {
        return Err(Error::Invalid(format!(
            "the rendezvous file {} belongs to user {}, and this process is user {own}'s; remove the file, or choose another one",
            path.display(),
            about.uid()
        )));
    }
    if !about.is_file() {
        return Err(Error::Invalid(format!(
            "the rendezvous file {} is not a regular file; remove it, or choose another one",
            path.display()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{os::unix::fs::PermissionsExt, time::Duration};

    #[test]
    fn keys_are_files_that_only_this_user_can_access() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path());
        for key in ["job", "a/b", "..", "", "%2F", "."] {
            assert_eq!(store.try_get(key).unwrap(), None, "{key:?}");
            store.set(key, key.as_bytes()).unwrap();
            store.set(key, b"again").unwrap();
            assert_eq!(store.get(key, Duration::ZERO).unwrap(), b"again", "{key:?}");
        }
        let files: Vec<_> = folder.path().read_dir().unwrap().map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 6, "nothing else is left: {files:?}");
        for file in &files {
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600, "{file:?}");
        }
        store.delete("job").unwrap();
        store.delete("job").unwrap();
        assert!(store.get("job", Duration::from_millis(30)).unwrap_err().to_string().contains("\"job\""));
    }

    #[test]
    fn large_values_are_refused_and_not_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path());
        store.set("fits", &[7; LIMIT]).unwrap();
        assert_eq!(store.try_get("fits").unwrap(), Some(vec![7; LIMIT]));
        let error = store.set("fits", &[7; LIMIT + 1]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a store value of 1048577 bytes exceeds the limit of 1048576; send large data with a collective"
        );
        fs::write(folder.path().join("large"), vec![7; LIMIT + 1]).unwrap();
        let error = store.try_get("large").unwrap_err().to_string();
        assert!(error.contains("large is larger than 1048576 bytes"), "{error}");
    }

    #[test]
    fn links_pipes_and_folders_are_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let store = FileStore::new(folder.path());
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "x").unwrap();
        std::os::unix::fs::symlink(path("file"), path("link")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        let pipe = std::ffi::CString::new(path("pipe").to_str().unwrap()).unwrap();
        // SAFETY: the name ends with a null byte.
        assert_eq!(unsafe { libc::mkfifo(pipe.as_ptr(), 0o600) }, 0);
        for name in ["link", "folder", "pipe"] {
            let error = store.try_get(name).unwrap_err().to_string();
            assert!(error.contains("not a regular file") && error.contains(name), "{error}");
        }
    }
}
