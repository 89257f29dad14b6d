//! Pictures in one folder per class as a Burn data set.

use super::picture::Picture;
use anyhow::{Context, Result, bail};
use burn::data::dataset::{Dataset, DatasetError};
use sha2::{Digest, Sha256};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

/// File extensions of pictures, in lower case.
const EXTENSIONS: [&str; 3] = ["png", "jpg", "jpeg"];
/// Names of a folder of evaluation pictures beside `train`.
const EVALUATION: [&str; 3] = ["val", "valid", "test"];

/// Size and colours to which pictures are converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageFormat {
    /// Side of the square in pixels.
    pub side: usize,
    /// 1 (grey) or 3 (red, green, blue).
    pub channels: usize,
}

/// A decoded picture with its class.
#[derive(Clone, Debug)]
pub struct Image {
    pub picture: Picture,
    /// Index of the class.
    pub label: usize,
    /// Index in the data set.
    pub index: usize,
}

/// A data set of the pictures in `FOLDER/CLASS/*.{png,jpg,jpeg}`, decoded when they are read.
///
/// Classes and files are in the order of their names.
#[derive(Clone, Debug)]
pub struct ImageFolder {
    folder: PathBuf,
    classes: Arc<[String]>,
    files: Arc<[(PathBuf, usize)]>,
    format: ImageFormat,
}

/// Pictures to train on and, if there are such folders, pictures for evaluation.
#[derive(Clone, Debug)]
pub struct ImageSplits {
    pub train: ImageFolder,
    pub evaluation: Option<ImageFolder>,
}

impl ImageSplits {
    /// Opens `folder/train` and `folder/val`, `valid` or `test`; or `folder` itself, without pictures for evaluation.
    ///
    /// # Errors
    /// If a folder cannot be read, has no classes or an empty one, or both parts have different classes.
    pub fn open(folder: &Path, format: ImageFormat) -> Result<Self> {
        if !folder.is_dir() {
            bail!("{}: there is no such folder", folder.display());
        }
        let train = folder.join("train");
        if !train.is_dir() {
            return Ok(Self { train: ImageFolder::open(folder, format)?, evaluation: None });
        }
        let train = ImageFolder::open(&train, format)?;
        let found = EVALUATION.iter().map(|name| folder.join(name)).find(|path| path.is_dir());
        let evaluation = found.map(|path| ImageFolder::open(&path, format)).transpose()?;
        if let Some(evaluation) = evaluation.as_ref().filter(|evaluation| evaluation.classes != train.classes)
        {
            bail!(
                "{} and {} have different classes; give both the same folders",
                train.folder.display(),
                evaluation.folder.display()
            );
        }
        Ok(Self { train, evaluation })
    }
}

impl ImageFolder {
    /// Finds the pictures of a folder without reading them.
    ///
    /// # Errors
    /// If a folder cannot be read, there are fewer than two classes, or a class has no pictures.
    pub fn open(folder: &Path, format: ImageFormat) -> Result<Self> {
        let mut classes = Vec::new();
        let mut files = Vec::new();
        for (path, name) in sorted(folder)?.into_iter().filter(|(path, _)| path.is_dir()) {
            let is_picture = |path: &Path| {
                let extension = path.extension().map(|extension| extension.to_ascii_lowercase());
                extension.is_some_and(|extension| EXTENSIONS.iter().any(|known| extension == *known))
            };
            let before = files.len();
            let pictures = sorted(&path)?.into_iter().filter(|(path, _)| is_picture(path));
            files.extend(pictures.map(|(path, _)| (path, classes.len())));
            if files.len() == before {
                bail!("{}: there are no .png, .jpg or .jpeg files in this folder of a class", path.display());
            }
            classes.push(name);
        }
        if classes.len() < 2 {
            let count = classes.len();
            bail!("{}: {count} folder(s) with pictures; at least two classes are needed", folder.display());
        }
        Ok(Self { folder: folder.into(), classes: classes.into(), files: files.into(), format })
    }

    /// Names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// Class of each picture.
    pub fn labels(&self) -> impl Iterator<Item = usize> + '_ {
        self.files.iter().map(|(_, label)| *label)
    }

    /// Reads and decodes a picture.
    ///
    /// # Errors
    /// If there is no such picture, or the file cannot be read or decoded. The error names the file.
    pub fn read(&self, index: usize) -> Result<Image> {
        let Some((path, label)) = self.files.get(index) else { bail!("there is no picture {index}") };
        let failed = || path.display().to_string();
        let bytes = fs::read(path).with_context(failed)?;
        let picture = Picture::decode(&bytes, self.format.channels).with_context(failed)?;
        Ok(Image { picture: picture.square(self.format.side), label: *label, index })
    }

    /// The data set without the pictures at `indices`, which are in ascending order.
    pub fn without(&self, indices: &[usize]) -> Self {
        let files = self.files.iter().enumerate();
        let kept = files.filter(|(index, _)| indices.binary_search(index).is_err());
        Self { files: kept.map(|(_, file)| file.clone()).collect(), ..self.clone() }
    }

    /// SHA-256 of the classes, and of the names and sizes of all files.
    ///
    /// # Errors
    /// If the size of a file cannot be read.
    pub fn digest(&self) -> Result<String> {
        let mut digest = Sha256::new();
        self.classes.iter().for_each(|class| digest.update(format!("{class}\n")));
        for (path, label) in self.files.iter() {
            let size = fs::metadata(path).with_context(|| path.display().to_string())?.len();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            digest.update(format!("{label} {size} {name}\n"));
        }
        Ok(hex::encode(digest.finalize()))
    }
}

impl Dataset<Image> for ImageFolder {
    fn get(&self, index: usize) -> Result<Image, DatasetError> {
        self.read(index).map_err(|error| DatasetError::new(io::Error::other(format!("{error:#}"))))
    }

    fn len(&self) -> usize {
        self.files.len()
    }
}

/// Paths and names of a folder's entries, in the order of the names, without hidden ones.
fn sorted(folder: &Path) -> Result<Vec<(PathBuf, String)>> {
    let failed = || format!("cannot read the folder {}", folder.display());
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !name.starts_with('.') {
            entries.push((entry.path(), name));
        }
    }
    entries.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::png;

    const FORMAT: ImageFormat = ImageFormat { side: 2, channels: 1 };

    fn write(folder: &Path, name: &str, bytes: &[u8]) {
        let path = folder.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("created");
        fs::write(path, bytes).expect("written");
    }

    #[test]
    fn classes_and_files_are_sorted_and_decoded_on_demand() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (name, shade) in [("dog/2.png", 7), ("cat/b.PNG", 5), ("cat/a.png", 4), ("dog/10.png", 6)] {
            write(folder.path(), name, &png::grey(2, &[shade; 4]));
        }
        write(folder.path(), "cat/notes.txt", b"");
        write(folder.path(), ".hidden/x.png", b"");
        let data = ImageFolder::open(folder.path(), FORMAT).expect("two classes");
        assert_eq!(data.classes(), ["cat", "dog"]);
        let shades: Vec<u8> =
            (0..4).map(|index| data.read(index).expect("a picture").picture.pixels[0]).collect();
        assert_eq!(shades, [4, 5, 6, 7]);
        assert_eq!(data.labels().collect::<Vec<_>>(), [0, 0, 1, 1]);
        let fewer = data.without(&[1, 2]);
        assert_eq!((fewer.len(), fewer.read(1).expect("a picture").label), (2, 1));
        assert_ne!(fewer.digest().expect("sizes"), data.digest().expect("sizes"));
        assert!(data.read(9).is_err());
    }
}
