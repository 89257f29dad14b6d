//! Files that are complete or not there at all, whatever happens while they are written.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Writes `path` under a temporary name, syncs it, and renames it.
///
/// # Errors
/// Whatever the file system says; the old file is then untouched.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let temporary = path.with_file_name(format!(".{name}.tmp"));
    let renamed = write_new(&temporary, bytes).and_then(|()| fs::rename(&temporary, path));
    if renamed.is_err() {
        // It may be what filled the disk.
        let _ = fs::remove_file(&temporary);
    }
    renamed?;
    sync_folder(path.parent().unwrap_or(Path::new(".")))
}

/// Writes `path` and syncs it; for a folder that is itself renamed later.
///
/// # Errors
/// Whatever the file system says.
pub fn write_new(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

/// Makes what was created, renamed or removed in `folder` outlast a power cut.
///
/// # Errors
/// Whatever the file system says.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    File::open(folder)?.sync_all()
}
