//! Temporary files of downloads, and the lock that prevents concurrent downloads.

use super::DataError;
use burn_ddp::process::atomic_file;
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
    process, thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

/// Suffix of temporary names.
const ENDING: &str = ".part";
/// Age at which a temporary file is orphaned, longer than any download.
const ORPHAN: Duration = Duration::from_secs(3600);
/// Interval between attempts to take the lock.
const LOOK: Duration = Duration::from_millis(50);

/// An advisory lock on a folder, held until dropped or until the process ends.
///
/// On file systems without locks it has no effect, and two programs do the same work under different temporary names.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits for the lock for at most `patience`, and removes orphaned files.
    ///
    /// Calls `waiting` once if it has to wait.
    pub fn acquire(folder: &Path, patience: Duration, waiting: impl FnOnce()) -> Result<Self, DataError> {
        let path = folder.join(".lock");
        let file = File::options().create(true).truncate(false).write(true).open(&path);
        let file = file.map_err(DataError::io("create", &path))?;
        let ends = Instant::now() + patience;
        let mut waiting = Some(waiting);
        loop {
            match file.try_lock() {
                Ok(()) => {
                    sweep(folder);
                    break;
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= ends => {
                    return Err(DataError::Locked { path, seconds: patience.as_secs() });
                }
                Err(TryLockError::WouldBlock) => {
                    if let Some(say) = waiting.take() {
                        say();
                    }
                    thread::sleep(LOOK);
                }
                Err(TryLockError::Error(_)) => break,
            }
        }
        Ok(Lock { _file: file })
    }
}

/// Removes orphaned files.
fn sweep(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let written = entry.metadata().and_then(|metadata| metadata.modified());
        let old = written.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > ORPHAN));
        if old && entry.file_name().to_string_lossy().ends_with(ENDING) {
            // A file that cannot be removed is harmless.
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// A file with a temporary name, removed when dropped unless it is kept.
#[derive(Debug)]
pub struct Part {
    file: File,
    path: PathBuf,
    target: PathBuf,
    kept: bool,
}

impl Part {
    /// Creates the temporary file for `name` in `folder`.
    pub fn create(folder: &Path, name: &str) -> Result<Self, DataError> {
        // Process ids are not unique if several machines share the folder.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = folder.join(format!(".{name}.{}.{now}{ENDING}", process::id()));
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(DataError::io("create", &path))?;
        Ok(Part { file, path, target: folder.join(name), kept: false })
    }

    /// Appends bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), DataError> {
        self.file.write_all(bytes).map_err(DataError::io("write", &self.path))
    }

    /// Syncs the file to disk and renames it to its final name.
    pub fn keep(mut self) -> Result<(), DataError> {
        self.file.sync_all().map_err(DataError::io("sync", &self.path))?;
        fs::rename(&self.path, &self.target).map_err(DataError::io("rename to", &self.target))?;
        self.kept = true;
        // Syncs the folder so that the name survives a power failure. Some systems do not support it.
        if let Some(folder) = self.target.parent() {
            let _ = atomic_file::sync_folder(folder);
        }
        Ok(())
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        if !self.kept {
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
    fn a_part_gets_its_name_only_when_kept() {
        let folder = tempfile::tempdir().unwrap();
        let mut part = Part::create(folder.path(), "a").unwrap();
        part.write(b"on").unwrap();
        part.write(b"e").unwrap();
        assert!(!folder.path().join("a").exists());
        part.keep().unwrap();
        assert_eq!(fs::read(folder.path().join("a")).unwrap(), b"one");
        Part::create(folder.path(), "b").unwrap().write(b"lost").unwrap();
        assert_eq!(names(folder.path()), ["a"]);
    }

    #[test]
    fn the_lock_is_exclusive_has_a_deadline_and_removes_orphans() {
        let folder = tempfile::tempdir().unwrap();
        let orphan = File::create(folder.path().join(".train.1.part")).unwrap();
        orphan.set_modified(SystemTime::now() - 2 * ORPHAN).unwrap();
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
