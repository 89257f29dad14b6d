//! Errors of a data set, which name the file and the field.

use super::{CLASSES, SIDE};
use std::{io, path::PathBuf};

/// An error of a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// MNIST was requested and is not available.
    #[error(
        "MNIST was not found; tried {}.\nName the folder of its four files (train-images-idx3-ubyte.gz and so on) \
         with --data-dir or MNIST_DIR, or train on a subset with --dataset subset",
        tried.join("; ")
    )]
    NotFound { tried: Vec<String> },
    /// A folder that the user named, or a download, is incomplete.
    #[error("{what} {}: {missing}; it must hold the four files of MNIST, plain or as .gz", folder.display())]
    Incomplete { what: &'static str, folder: PathBuf, missing: String },
    /// A folder was given for the subset, which is in the program.
    #[error("--dataset subset reads no files: leave out --data-dir {} or use --dataset mnist", .0.display())]
    UnusedFolder(PathBuf),
    /// An unknown name of a data set.
    #[error("unknown data set {0:?}: use auto, mnist or subset")]
    UnknownKind(String),
    /// `$MNIST_MIRROR` is not an address.
    #[error("MNIST_MIRROR={0:?} must be an address that begins with http:// or https://")]
    Mirror(String),
    /// An error of the operating system.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io { action: &'static str, path: PathBuf, reason: io::Error },

    /// Not an IDX file of the expected kind.
    #[error("{}: magic number is {found:#010x}, expected {expected:#010x} ({kind}); check that it is the right file", path.display())]
    Magic { path: PathBuf, kind: &'static str, expected: u32, found: u32 },
    /// The file ends too early.
    #[error("{}: truncated: {field} has {found} bytes, expected {expected}; fetch the file again", path.display())]
    Truncated { path: PathBuf, field: &'static str, expected: u64, found: u64 },
    /// The file continues after its last item.
    #[error("{}: {found} bytes, but its header states {expected}: trailing bytes or a wrong count", path.display())]
    Trailing { path: PathBuf, expected: u64, found: u64 },
    /// A header with zero items, or more than the limit.
    #[error("{}: number of items is {found}, expected 1 to {limit}", path.display())]
    Count { path: PathBuf, found: u32, limit: u32 },
    /// Images of another size.
    #[error("{}: images are {rows}x{columns} pixels, expected {SIDE}x{SIDE}", path.display())]
    ImageSize { path: PathBuf, rows: u32, columns: u32 },
    /// Images and labels that differ in number.
    #[error("{} holds {images} images, but {} holds {labels} labels", images_path.display(), labels_path.display())]
    Mismatch { images_path: PathBuf, images: usize, labels_path: PathBuf, labels: usize },
    /// A class that does not exist.
    #[error("{}: label {index} is {label}, expected 0 to {}", path.display(), CLASSES - 1)]
    Label { path: PathBuf, index: usize, label: u8 },
    /// A gzip stream that does not decompress, or whose check sum is wrong.
    #[error("{}: gzip data damaged after {offset} decompressed bytes: {reason}; fetch the file again", path.display())]
    Gzip { path: PathBuf, offset: u64, reason: String },

    /// No mirror delivered a file; contains each mirror's error.
    #[error("{name} could not be downloaded: {}", attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unavailable { name: &'static str, attempts: Vec<DataError> },
    /// A mirror that did not respond, or not with the file.
    #[error("{url}: {reason}")]
    Download { url: String, reason: String },
    /// A mirror whose file has the wrong checksum.
    #[error("{url}: SHA-256 of the content is {found}, expected {expected}")]
    Checksum { url: String, expected: &'static str, found: String },
    /// Another program holds the download lock for too long.
    #[error("{}: another program has held this lock for {seconds} s; end it or delete the file", path.display())]
    Locked { path: PathBuf, seconds: u64 },
}

impl DataError {
    /// Creates a conversion of I/O errors that adds the action and the path.
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |reason| DataError::Io { action, path: path.into(), reason }
    }
}
