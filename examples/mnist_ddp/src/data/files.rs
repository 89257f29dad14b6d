//! The four files of MNIST: their names, the folders where they are searched, and their download.

use anyhow::{Result, bail};
use burn_ddp::data::download::{RemoteFile, TimeLimits, download};
use std::{
    env, fs, io,
    path::{Path, PathBuf},
};

/// Images and labels for training, images and labels for testing.
const MNIST: [RemoteFile<'_>; 4] = [
    RemoteFile {
        name: "train-images-idx3-ubyte",
        bytes: 47_040_016,
        sha256: "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    },
    RemoteFile {
        name: "train-labels-idx1-ubyte",
        bytes: 60_008,
        sha256: "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    },
    RemoteFile {
        name: "t10k-images-idx3-ubyte",
        bytes: 7_840_016,
        sha256: "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    },
    RemoteFile {
        name: "t10k-labels-idx1-ubyte",
        bytes: 10_008,
        sha256: "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    },
];

/// Public mirrors of MNIST, in the order in which they are tried.
const MIRRORS: [&str; 2] =
    ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"];

/// Places that are searched besides `--data-dir`.
#[derive(Clone, Debug)]
pub struct Places<'a> {
    /// `$MNIST_DIR`, if set.
    pub mnist_dir: Option<PathBuf>,
    /// Download folder in the user's cache; `None` for a user without a home.
    pub cache: Option<PathBuf>,
    /// Addresses, each with a final slash.
    pub mirrors: Vec<String>,
    /// Properties of a correct download.
    pub files: [RemoteFile<'a>; 4],
    /// Whether this rank downloads for its machine; the others [load](super::load) afterwards.
    pub download: bool,
    /// Whether to draw a progress bar on standard error.
    pub progress: bool,
}

impl Places<'static> {
    /// The places from this process's environment, with or without a `download` that shows its `progress`.
    ///
    /// # Errors
    /// If `$MNIST_MIRROR` is not an address.
    pub fn from_process(download: bool, progress: bool) -> Result<Self> {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let mirrors = match variable("MNIST_MIRROR").map(|value| value.to_string_lossy().into_owned()) {
            Some(value) if value.starts_with("http://") || value.starts_with("https://") => {
                vec![format!("{}/", value.trim_end_matches('/'))]
            }
            Some(value) => {
                bail!("MNIST_MIRROR={value:?} must be an address that begins with http:// or https://")
            }
            None => MIRRORS.map(String::from).to_vec(),
        };
        Ok(Places {
            mnist_dir: variable("MNIST_DIR").map(PathBuf::from),
            cache: dirs::cache_dir().map(|folder| folder.join("burn-ddp").join("mnist")),
            mirrors,
            files: MNIST,
            download,
            progress,
        })
    }
}

impl Places<'_> {
    /// Searches `$MNIST_DIR`, the cache and the internet. The error lists every place with its problem.
    pub(super) fn search(&self) -> Result<(PathBuf, [PathBuf; 4]), Vec<String>> {
        let mut tried = vec![];
        for (name, folder) in [("MNIST_DIR", &self.mnist_dir), ("the cache folder", &self.cache)] {
            let Some(folder) = folder else { continue };
            match find(folder) {
                Ok(files) => return Ok((folder.clone(), files)),
                Err(missing) => tried.push(format!("{name} {}: {missing}", folder.display())),
            }
        }
        match &self.cache {
            Some(folder) if self.download => {
                let progress = self.progress.then_some("MNIST");
                match download(folder, &self.files, &self.mirrors, TimeLimits::default(), progress) {
                    Ok(()) => return Ok((folder.clone(), MNIST.map(|file| folder.join(file.name)))),
                    Err(error) => tried.push(format!("{error:#}")),
                }
            }
            Some(_) => tried.push("no download, which is left to the first rank of each machine".into()),
            None => tried.push("no download, for want of a home folder to keep it in".into()),
        }
        Err(tried)
    }
}

/// The four files in `folder`: images and labels for training, then for the test.
///
/// # Errors
/// If one is missing, which is named.
pub fn find(folder: &Path) -> Result<[PathBuf; 4], String> {
    if !folder.is_dir() {
        return Err("there is no such folder".into());
    }
    let [a, b, c, d] = MNIST.map(|file| find_one(folder, file.name));
    Ok([a?, b?, c?, d?])
}

/// Finds one file, preferably plain, whose name may have a dot in place of the last dash but one.
fn find_one(folder: &Path, name: &str) -> Result<PathBuf, String> {
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
