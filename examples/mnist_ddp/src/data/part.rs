//! Partial files of a download, and the lock against concurrent downloads.

use super::DataError;
use burn_ddp::process::atomic_file;
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Extension of temporary files.
const EXTENSION: &str = ".part";
/// Age after which a temporary file is orphaned, longer than any download.
const ORPHAN_AGE: Duration = Duration::from_secs(3600);
/// Polling interval of the lock.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Advisory lock on a folder, released when it is dropped or the process ends.
///
/// It has no effect on file systems without locks. Concurrent processes then download the same files under different
/// temporary names.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Acquires the lock and removes orphaned temporary files. Calls `waiting` once if it has to wait.
    ///
    /// # Errors
    /// If the lock is not free within `timeout`, or its file cannot be created.
    pub fn acquire(folder: &Path, timeout: Duration, waiting: impl FnOnce()) -> Result<Self, DataError> {
        let path = folder.join(".lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(DataError::io("create", &path))?;
        let ends = Instant::now() + timeout;
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => {
                    remove_orphans(folder);
                    break;
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= ends => {
                    return Err(DataError::Locked { path, seconds: timeout.as_secs() });
                }
                Err(TryLockError::WouldBlock) => {
                    if let Some(waiting) = waiting.take() {
                        waiting();
                    }
                    thread::sleep(POLL_INTERVAL);
                }
                Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(Lock { _file: file })
    }
}

/// Removes temporary files of killed processes.
fn remove_orphans(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let old = written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ORPHAN_AGE));
        if old && entry.file_name().to_string_lossy().ends_with(EXTENSION) {
            // Files that cannot be removed are harmless.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// File under a temporary name, removed on drop unless it is persisted.
#[derive(Debug)]
pub struct PartialFile {
    file: File,
    path: PathBuf,
    target: PathBuf,
    persisted: bool,
}

impl PartialFile {
    /// Creates the temporary file of `name` in `folder`.
    ///
    /// # Errors
    /// If the file cannot be created.
    pub fn create(folder: &Path, name: &str) -> Result<Self, DataError> {
        // Machines that share the folder may use the same process id.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = folder.join(format!(".{name}.{}.{now}{EXTENSION}", process::id()));
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(DataError::io("create", &path))?;
        Ok(PartialFile { file, path, target: folder.join(name), persisted: false })
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(DataError::io("write", &self.path))
    }

    /// Syncs the file and renames it to its final name.
    ///
    /// # Errors
    /// If the file cannot be synced or renamed.
    pub fn persist(mut self) -> Result<(), DataError> {
        self.file.sync_all().map_err(DataError::io("sync", &self.path))?;
        fs::rename(&self.path, &self.target).map_err(DataError::io("rename to", &self.target))?;
        self.persisted = true;
        // Makes the rename durable; ignored on systems that cannot sync folders.
        if let Some(folder) = self.target.parent() {
            let _ = atomic_file::sync_folder(folder);
        }
        Ok(())
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.persisted {
            let _ = fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(folder: &Path) -> Vec<String> {
        let mut names: Vec<_> =
            fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    #[test]
    fn a_partial_file_gets_its_name_when_persisted() {
        let folder = tempfile::tempdir().unwrap();
        let mut part = PartialFile::create(folder.path(), "a").unwrap();
        part.write(b"on").unwrap();
        part.write(b"e").unwrap();
        assert!(!folder.path().join("a").exists());
        part.persist().unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"one");
        PartialFile::create(folder.path(), "b").unwrap().write(b"lost").unwrap();
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn the_lock_is_exclusive_times_out_and_removes_orphans() {
        let folder = tempfile::tempdir().unwrap();
        let orphan = File::create(folder.path().join(".train.1.part")).unwrap();
        orphan.set_modified(SystemTime::now() - 2 * ORPHAN_AGE).unwrap();
        fs::write(folder.path().join(".train.2.part"), "under way on another machine").unwrap();
        fs::write(folder.path().join("train"), "whole").unwrap();
        let held = Lock::acquire(folder.path(), Duration::ZERO, || panic!("nobody holds it")).unwrap();
        assert_eq!(names(folder.path()), [".lock", ".train.2.part", "train"]);

        let mut waited = false;
        let error = Lock::acquire(folder.path(), Duration::from_millis(120), || waited = true).unwrap_err();
        assert!(waited);
        assert!(error.to_string().contains(".lock: another program has held this lock"), "{error}");

        drop(held);
        Lock::acquire(folder.path(), Duration::ZERO, || panic!("it was released")).unwrap();
    }
}
