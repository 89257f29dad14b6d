//! The data set: MNIST from this machine or the internet, drop-ins in its format, or a subset of MNIST.

mod files;

pub use burn_ddp::data::GreyImages as Images;
pub use files::{Places, find};

use anyhow::{Result, anyhow, bail};
use burn_ddp::context::values::positive;
use clap::{Args, ValueEnum};
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

/// Number of pixels per side.
pub const SIDE: usize = 28;
/// Number of pixels of an image.
pub const PIXELS: usize = SIDE * SIDE;
/// Number of classes; labels are below it.
pub const CLASSES: usize = 10;

/// Mean of MNIST's training pixels, 0 to 1, as in pytorch/examples.
pub const MEAN: f32 = 0.1307;
/// Standard deviation of MNIST's training pixels, as in pytorch/examples.
pub const STD: f32 = 0.3081;

/// Normalises a pixel: (pixel/255 − [`MEAN`]) / [`STD`], in `f32`.
pub fn normalise(pixel: f32) -> f32 {
    (pixel / 255.0 - MEAN) / STD
}

/// The normalised pixels of an image.
pub fn normalised(image: &[u8]) -> impl Iterator<Item = f32> + '_ {
    image.iter().map(|pixel| normalise(f32::from(*pixel)))
}

/// The data set to train on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DatasetKind {
    /// MNIST, or the subset where it can neither be found nor downloaded
    #[default]
    Auto,
    /// MNIST or a drop-in in its format
    Mnist,
    /// 6,000 training and 2,000 test images of MNIST, which are in the program
    Subset,
}

/// Flags of the data set.
#[derive(Args, Clone, Debug, Default)]
#[command(about = None, long_about = None, next_help_heading = "Data")]
pub struct DataArgs {
    /// Dataset; auto is MNIST if it is found or can be downloaded, else a subset of it
    #[arg(long, value_enum, default_value = "auto", hide_short_help = true)]
    pub dataset: DatasetKind,
    /// Folder with the four MNIST files, gzipped or not
    #[arg(long, value_name = "DIR")]
    pub data_dir: Option<PathBuf>,
    /// Limit on training images: the first N
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub train_limit: Option<usize>,
    /// Limit on test images: the first N
    #[arg(long, value_name = "N", value_parser = positive, hide_short_help = true)]
    pub eval_limit: Option<usize>,
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

/// Loads the data set from `--data-dir`, the only place if it is given, or from one of `places`.
///
/// # Errors
/// If the requested data set is missing, or its files are damaged.
pub fn load(args: &DataArgs, places: &Places<'_>) -> Result<Dataset> {
    let (kind, limits) = (args.dataset, [args.train_limit, args.eval_limit]);
    match &args.data_dir {
        Some(folder) if kind == DatasetKind::Subset => bail!(
            "--dataset subset reads no files: leave out --data-dir {} or use --dataset mnist",
            folder.display()
        ),
        Some(folder) => {
            let files = find(folder).map_err(|missing| {
                anyhow!(
                    "--data-dir {}: {missing}; it must hold the four files of MNIST, plain or as .gz",
                    folder.display()
                )
            })?;
            return Dataset::mnist(folder, &files, limits);
        }
        None if kind == DatasetKind::Subset => return Dataset::subset(limits),
        None => {}
    }
    match places.search() {
        Ok((folder, files)) => Dataset::mnist(&folder, &files, limits),
        Err(tried) if kind == DatasetKind::Mnist => bail!(
            "MNIST was not found; tried {}.\nName the folder of its four files (train-images-idx3-ubyte.gz and so on) \
             with --data-dir or MNIST_DIR, or train on a subset with --dataset subset",
            tried.join("; ")
        ),
        Err(tried) => {
            let notice = format!(
                "NOT ALL OF MNIST but 6,000 training and 2,000 test images of it: accuracies do not compare with \
                 MNIST's. Name MNIST's folder with --data-dir or MNIST_DIR; tried {}",
                tried.join("; ")
            );
            Ok(Dataset { notice: Some(notice), ..Dataset::subset(limits)? })
        }
    }
}

/// A file of the subset in the program, with its name for errors.
macro_rules! file {
    ($name:literal) => {
        (Path::new($name), &include_bytes!(concat!("../../subset/", $name))[..])
    };
}

impl Dataset {
    fn mnist(folder: &Path, files: &[PathBuf; 4], limits: [Option<usize>; 2]) -> Result<Self> {
        let [train, train_labels, test, test_labels] = files;
        Ok(Dataset {
            train: Images::read_idx(train, train_labels, SIDE, CLASSES)?.first(limits[0]),
            test: Images::read_idx(test, test_labels, SIDE, CLASSES)?.first(limits[1]),
            name: "mnist",
            source: folder.display().to_string(),
            notice: None,
        })
    }

    /// The subset of MNIST that is in the program, or the first of its training and test images.
    ///
    /// # Errors
    /// If its files were damaged when the program was built.
    pub fn subset(limits: [Option<usize>; 2]) -> Result<Self> {
        let (train, labels) = (file!("train-images-idx3-ubyte.gz"), file!("train-labels-idx1-ubyte.gz"));
        let (test, test_labels) = (file!("t10k-images-idx3-ubyte.gz"), file!("t10k-labels-idx1-ubyte.gz"));
        Ok(Dataset {
            train: Images::from_idx(train, labels, SIDE, CLASSES)?.first(limits[0]),
            test: Images::from_idx(test, test_labels, SIDE, CLASSES)?.first(limits[1]),
            name: "subset",
            source: "part of the program".into(),
            notice: None,
        })
    }

    /// SHA-256 over all images and labels, in hexadecimal.
    ///
    /// It must be equal on all ranks; with `auto`, machines may have different data.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        for images in [&self.train, &self.test] {
            hash.update((images.len() as u64).to_le_bytes());
            hash.update(&images.pixels);
            hash.update(&images.labels);
        }
        hex::encode(hash.finalize())
    }
}
