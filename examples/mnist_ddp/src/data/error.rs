//! Errors of loading a data set. Messages name the file and the field.

use super::{CLASSES, SIDE};
use std::{io, path::PathBuf};

/// Error of loading a data set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DataError {
    /// MNIST was requested and not found.
    #[error(
        "MNIST was not found; tried {}.\nName the folder of its four files (train-images-idx3-ubyte.gz and so on) \
         with --data-dir or MNIST_DIR, or train on generated digits with --dataset digits",
        tried.join("; ")
    )]
    NotFound { tried: Vec<String> },
    /// A folder given by the user, or a download, is incomplete.
    #[error("{what} {}: {missing}; it must hold the four files of MNIST, plain or as .gz", folder.display())]
    Incomplete { what: &'static str, folder: PathBuf, missing: String },
    /// Generated digits were requested together with a folder.
    #[error("--dataset digits reads no files: leave out --data-dir {} or use --dataset mnist", .0.display())]
    UnusedFolder(PathBuf),
    /// The name of the data set is unknown.
    #[error("no data set is called {0:?}: use auto, mnist or digits")]
    UnknownKind(String),
    /// `$MNIST_MIRROR` is not a URL.
    #[error("MNIST_MIRROR={0:?} must be an address that begins with http:// or https://")]
    Mirror(String),
    /// A file operation failed.
    #[error("cannot {action} {}: {reason}", path.display())]
    Io { action: &'static str, path: PathBuf, reason: io::Error },

    /// The file is not an IDX file of the expected kind.
    #[error("{}: magic number is {found:#010x}, expected {expected:#010x} ({kind}); is it another file?", path.display())]
    Magic { path: PathBuf, kind: &'static str, expected: u32, found: u32 },
    /// The file is truncated.
    #[error("{}: truncated: {field} has {found} bytes, expected {expected}; fetch the file again", path.display())]
    Truncated { path: PathBuf, field: &'static str, expected: u64, found: u64 },
    /// The file has data after its last item.
    #[error("{}: {found} bytes, but its header promises {expected}: trailing bytes or a wrong count", path.display())]
    Trailing { path: PathBuf, expected: u64, found: u64 },
    /// The number of items in the header is 0 or above the limit.
    #[error("{}: number of items is {found}, expected 1 to {limit}", path.display())]
    Count { path: PathBuf, found: u32, limit: u32 },
    /// The images have another size.
    #[error("{}: images are {rows}x{columns} pixels, expected {SIDE}x{SIDE}", path.display())]
    ImageSize { path: PathBuf, rows: u32, columns: u32 },
    /// The numbers of images and labels differ.
    #[error("{} holds {images} images, but {} holds {labels} labels", images_path.display(), labels_path.display())]
    Mismatch { images_path: PathBuf, images: usize, labels_path: PathBuf, labels: usize },
    /// A label is out of range.
    #[error("{}: label {index} is {label}, expected 0 to {}", path.display(), CLASSES - 1)]
    Label { path: PathBuf, index: usize, label: u8 },
    /// A gzip stream is corrupt or has a wrong checksum.
    #[error("{}: gzip data damaged after {offset} decompressed bytes: {reason}; fetch the file again", path.display())]
    Gzip { path: PathBuf, offset: u64, reason: String },

    /// No mirror delivered the file.
    #[error("{name} could not be downloaded: {}", attempts.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Unavailable { name: &'static str, attempts: Vec<DataError> },
    /// A mirror did not respond, or not with the file.
    #[error("{url}: {reason}")]
    Download { url: String, reason: String },
    /// A mirror sent other content.
    #[error("{url}: SHA-256 of the content is {found}, expected {expected}")]
    Checksum { url: String, expected: &'static str, found: String },
    /// Another process has held the download lock for too long.
    #[error("{}: another program has held this lock for {seconds} s; end it or delete the file", path.display())]
    Locked { path: PathBuf, seconds: u64 },
}

impl DataError {
    /// Returns a function that adds action and path to an I/O error.
    pub(super) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        move |reason| DataError::Io { action, path: path.into(), reason }
    }
}
