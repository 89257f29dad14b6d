//! Locations of MNIST: file names, searched folders and mirrors.

use super::DataError;
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Name, size and checksum of an uncompressed file of MNIST.
#[derive(Clone, Copy, Debug)]
pub struct Original {
    /// Name without `.gz`.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: u64,
    /// SHA-256, lower-case hexadecimal.
    pub sha256: &'static str,
}

const fn original(name: &'static str, bytes: u64, sha256: &'static str) -> Original {
    Original { name, bytes, sha256 }
}

/// The four files: training images and labels, test images and labels.
pub const MNIST: [Original; 4] = [
    original(
        "train-images-idx3-ubyte",
        47_040_016,
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    ),
    original(
        "train-labels-idx1-ubyte",
        60_008,
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    ),
    original(
        "t10k-images-idx3-ubyte",
        7_840_016,
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    ),
    original(
        "t10k-labels-idx1-ubyte",
        10_008,
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
];

/// Public mirrors of MNIST, in the order of use.
const MIRRORS: [&str; 2] =
    ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"];

/// Locations to search besides `--data-dir`.
#[derive(Clone, Debug)]
pub struct Places {
    /// `$MNIST_DIR`, if set.
    pub mnist_dir: Option<PathBuf>,
    /// Download folder in the user's cache folder; `None` for a user without a home folder.
    pub cache: Option<PathBuf>,
    /// URLs that end in a slash.
    pub mirrors: Vec<String>,
    /// Expected sizes and checksums of downloads.
    pub originals: [Original; 4],
}

impl Places {
    /// Reads the locations from the environment variables of this process.
    ///
    /// # Errors
    /// If `MNIST_MIRROR` is not a URL.
    pub fn of_process() -> Result<Self, DataError> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let mirrors = match variable("MNIST_MIRROR") {
            Some(value) => vec![mirror(&value.to_string_lossy())?],
            None => MIRRORS.map(String::from).to_vec(),
        };
        Ok(Places {
            mnist_dir: variable("MNIST_DIR").map(PathBuf::from),
            cache: dirs::cache_dir().map(|folder| folder.join("burn-ddp").join("mnist")),
            mirrors,
            originals: MNIST,
        })
    }
}

/// Validates the URL of a mirror and adds a missing last slash.
fn mirror(value: &str) -> Result<String, DataError> {
    match value.starts_with("http://") || value.starts_with("https://") {
        true => Ok(format!("{}/", value.trim_end_matches('/'))),
        false => Err(DataError::Mirror(value.into())),
    }
}

/// Finds the four files in `folder`, in the order of [`MNIST`].
///
/// # Errors
/// If a file is missing. The error describes it.
pub fn find(folder: &Path) -> Result<[PathBuf; 4], String> {
    if !folder.is_dir() {
        return Err("there is no such folder".into());
    }
    let [a, b, c, d] = MNIST.map(|file| find_one(folder, file.name));
    Ok([a?, b?, c?, d?])
}

/// Finds one file in `folder`.
///
/// It may be plain or gzipped, with a dash or a dot in its name.
///
/// # Errors
/// If the file is missing or not readable. The error describes it.
pub fn find_one(folder: &Path, name: &str) -> Result<PathBuf, String> {
    let dotted = name.replacen("-idx", ".idx", 1);
    for candidate in [name, dotted.as_str()].into_iter().flat_map(|name| [name.into(), format!("{name}.gz")])
    {
        let path = folder.join(&candidate);
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() => return Ok(path),
            Ok(_) => return Err(format!("{candidate} is not a file")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{candidate} cannot be read: {error}")),
        }
    }
    Err(format!("{name} or {name}.gz is missing"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_found_under_each_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        let names = [
            "train-images-idx3-ubyte.gz",
            "train-labels.idx1-ubyte",
            "t10k-images-idx3-ubyte",
            "t10k-labels.idx1-ubyte.gz",
        ];
        for (i, name) in names.iter().enumerate() {
            let missing = find(folder.path()).unwrap_err();
            assert_eq!(missing, format!("{0} or {0}.gz is missing", MNIST[i].name));
            fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(find(folder.path()).unwrap(), names.map(|name| folder.path().join(name)));
        // A plain file is preferred: it loads faster.
        fs::write(folder.path().join(MNIST[0].name), "").unwrap();
        assert_eq!(find(folder.path()).unwrap()[0], folder.path().join(MNIST[0].name));
    }

    #[test]
    fn a_missing_folder_and_a_folder_in_place_of_a_file_are_reported() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(find(&folder.path().join("none")).unwrap_err(), "there is no such folder");
        fs::create_dir(folder.path().join(MNIST[0].name)).unwrap();
        assert_eq!(find(folder.path()).unwrap_err(), "train-images-idx3-ubyte is not a file");
    }

    #[test]
    fn a_mirror_is_an_address() {
        assert_eq!(mirror("http://a/b").unwrap(), "http://a/b/");
        assert_eq!(mirror("https://a/b/").unwrap(), "https://a/b/");
        assert!(matches!(mirror("ftp://a"), Err(DataError::Mirror(value)) if value == "ftp://a"));
    }

    #[test]
    fn pinned_checksums_are_well_formed() {
        for file in MNIST {
            assert_eq!(file.sha256.len(), 64);
            assert!(file.sha256.bytes().all(|c| c.is_ascii_digit() || (b'a'..=b'f').contains(&c)));
        }
    }
}
