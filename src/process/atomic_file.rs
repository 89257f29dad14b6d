//! Atomic writes of files, and files that may be missing.

use anyhow::{Context, Result};
use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Writes a file atomically: to a temporary name, synced, then renamed.
///
/// # Errors
/// If a file operation fails. The error names the file. An existing file is then unchanged.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let renamed = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    let synced = renamed.and_then(|()| sync_folder(path.parent().unwrap_or(Path::new("."))));
    synced.with_context(|| format!("cannot write {}", path.display()))
}

/// Writes and syncs a file without renaming, for files in a folder that is renamed later.
///
/// # Errors
/// If a file operation fails.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Syncs a folder, so that creations, renames and removals in it survive a power failure.
///
/// # Errors
/// If the folder cannot be opened or synced.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}

/// Returns the content of a file; `None` if it does not exist.
///
/// # Errors
/// If the file cannot be read. The error names it.
pub fn read(path: &Path) -> Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        read => read.map(Some).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Removes a file, link or folder if it exists.
///
/// # Errors
/// If it cannot be removed.
pub fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        found => found.and_then(|_| fs::remove_file(path)),
    };
    removed.or_else(|error| if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) })
}
