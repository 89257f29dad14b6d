//! The data set: MNIST from this machine or the internet, drop-ins in its format, or a subset of MNIST.
//!
//! On each machine one rank calls [`prepare`] with `download` set and loads the result, while the others wait at a
//! barrier. They then call [`prepare`], which only searches. The module prints nothing but the progress bar.

mod download;
mod error;
mod idx;
mod images;
mod locate;
mod part;
mod prepare;
mod subset;

pub use error::DataError;
pub use images::{CLASSES, Images, MEAN, PIXELS, SIDE, STD, normalise};
pub use prepare::{Prepared, load, prepare};

use sha2::{Digest, Sha256};
use std::{fmt, path::PathBuf, str::FromStr};

/// The data set to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum DatasetKind {
    /// MNIST, or the subset where it can neither be found nor downloaded
    #[default]
    Auto,
    /// MNIST or a drop-in in its format
    Mnist,
    /// 6,000 training and 2,000 test images of MNIST, which are in the program
    Subset,
}

impl DatasetKind {
    const ALL: [Self; 3] = [DatasetKind::Auto, DatasetKind::Mnist, DatasetKind::Subset];

    /// Name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            DatasetKind::Auto => "auto",
            DatasetKind::Mnist => "mnist",
            DatasetKind::Subset => "subset",
        }
    }
}

impl fmt::Display for DatasetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for DatasetKind {
    type Err = DataError;

    fn from_str(name: &str) -> Result<Self, DataError> {
        let kind = Self::ALL.into_iter().find(|kind| kind.name() == name);
        kind.ok_or_else(|| DataError::UnknownKind(name.into()))
    }
}

/// The requested data set.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Which data set.
    pub kind: DatasetKind,
    /// The user's folder, which is then the only place, also for [`DatasetKind::Auto`].
    pub data_dir: Option<PathBuf>,
    /// Whether this rank downloads for its machine.
    pub download: bool,
    /// Whether to draw a progress bar on standard error.
    pub progress: bool,
}

/// Training and test images, in memory.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Training images.
    pub train: Images,
    /// Evaluation images.
    pub test: Images,
    /// `"mnist"` or `"subset"`.
    pub name: &'static str,
    /// The folder of the files, or that they are in the program.
    pub source: String,
    /// A line for the user if this is not the preferred data.
    pub notice: Option<String>,
}

impl Dataset {
    /// SHA-256 over all images and labels, in hexadecimal.
    ///
    /// It must be equal on all ranks; with `auto`, machines may have different data.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for images in [&self.train, &self.test] {
            hash.update((images.len() as u64).to_le_bytes());
            hash.update(images.pixels());
            hash.update(images.labels());
        }
        hex::encode(hash.finalize())
    }
}

#[cfg(test)]
mod fixture;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for kind in DatasetKind::ALL {
            assert_eq!(kind.to_string().parse::<DatasetKind>().unwrap(), kind);
            let value = clap::ValueEnum::to_possible_value(&kind).unwrap();
            assert_eq!(value.get_name(), kind.name());
        }
        let error = "cifar".parse::<DatasetKind>().unwrap_err();
        assert_eq!(error.to_string(), "unknown data set \"cifar\": use auto, mnist or subset");
    }

    #[test]
    fn different_data_sets_have_different_digests() {
        let digest = |train, test| Dataset::subset([Some(train), Some(test)]).unwrap().digest();
        assert_eq!(digest(20, 10), digest(20, 10));
        assert_ne!(digest(20, 10), digest(21, 10));
        assert_ne!(digest(20, 10), digest(20, 11));
        assert_eq!(digest(20, 10).len(), 64);
    }
}
