//! Labelled greyscale images in memory, and their reader from IDX files.
//!
//! IDX is the format of MNIST and its drop-ins. A file has a big-endian magic number (two zero bytes, the element
//! type, the number of dimensions), each dimension as a big-endian `u32`, then the elements. All values are
//! validated before use, and no header causes an allocation beyond the file's content. Source: Y. LeCun, C. Cortes,
//! C. Burges, "The MNIST database of handwritten digits".

use super::download::decompressed;
use anyhow::{Context, Result, anyhow, bail};
use std::{
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Read},
    path::Path,
    sync::Arc,
};

/// Maximum number of images; the largest known drop-in, MNIST8M, has 8,100,000.
const MOST_ITEMS: u32 = 10_000_000;
/// Maximum number of bytes reserved from a header; further memory grows with the bytes read.
const RESERVE: u64 = 64 << 20;

/// Square greyscale images of one size and their classes. Clones share the memory.
#[derive(Clone, PartialEq, Eq)]
pub struct GreyImages {
    /// Side of an image in pixels.
    pub side: usize,
    /// Pixels of all images, row by row from the top; 0 is black.
    pub pixels: Arc<[u8]>,
    /// Class of each image.
    pub labels: Arc<[u8]>,
}

impl GreyImages {
    /// Number of images.
    #[expect(clippy::len_without_is_empty)] // data sets have samples
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// The first `count` images, or all if there are fewer.
    pub fn first(self, count: Option<usize>) -> Self {
        let Some(count) = count.filter(|count| *count < self.len()) else { return self };
        let pixels = self.pixels[..count * self.side * self.side].into();
        GreyImages { side: self.side, pixels, labels: self.labels[..count].into() }
    }

    /// Pixels of image `index`.
    ///
    /// # Panics
    /// If there is no such image.
    pub fn image(&self, index: usize) -> &[u8] {
        let size = self.side * self.side;
        &self.pixels[index * size..(index + 1) * size]
    }

    /// Reads an IDX file of images of `side` × `side` pixels and the file of their labels, each plain or gzipped.
    ///
    /// # Errors
    /// If a file cannot be read or is damaged, images have another size, or a label is not below `classes`. The error
    /// names the file and the field.
    pub fn read_idx(images: &Path, labels: &Path, side: usize, classes: usize) -> Result<Self> {
        let open = |path: &Path| {
            let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
            anyhow::Ok(BufReader::with_capacity(1 << 16, file))
        };
        Self::from_idx((images, open(images)?), (labels, open(labels)?), side, classes)
    }

    /// Decodes images and their labels as [`read_idx`](Self::read_idx) does. The paths are for errors.
    ///
    /// # Errors
    /// As for [`read_idx`](Self::read_idx).
    pub fn from_idx<R: BufRead>(
        (images, pixels): (&Path, R),
        (labels, answers): (&Path, R),
        side: usize,
        classes: usize,
    ) -> Result<Self> {
        let pixels = items(images, pixels, "images", "pixel data", &[side as u32; 2])?;
        let answers = items(labels, answers, "labels", "label data", &[])?;
        let count = pixels.len() / (side * side);
        if count != answers.len() {
            let (labels, labelled) = (labels.display(), answers.len());
            bail!("{} holds {count} images, but {labels} holds {labelled} labels", images.display());
        }
        if let Some(at) = answers.iter().position(|label| usize::from(*label) >= classes) {
            bail!("{}: label {at} is {}, expected 0 to {}", labels.display(), answers[at], classes - 1);
        }
        Ok(Self { side, pixels: pixels.into(), labels: answers.into() })
    }
}

impl fmt::Debug for GreyImages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GreyImages({})", self.len())
    }
}

/// Reads the items of a file, whose header must state items of this size and after which it must end.
fn items(path: &Path, reader: impl BufRead, kind: &str, field: &str, size: &[u32]) -> Result<Vec<u8>> {
    let path = path.display();
    let mut reader = decompressed(reader).with_context(|| format!("cannot read {path}"))?;
    let failed = |error: io::Error, offset: u64| match error.kind() {
        // Plain files have no such errors.
        ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => anyhow!(
            "{path}: gzip data damaged after {offset} decompressed bytes: {error}; fetch the file again"
        ),
        _ => anyhow!("cannot read {path}: {error}"),
    };
    let mut offset = 0;
    let mut read = |field: &str, expected: u64| -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(expected.min(RESERVE) as usize);
        let result = reader.by_ref().take(expected).read_to_end(&mut bytes);
        let found = bytes.len() as u64;
        offset += found;
        result.map_err(|error| failed(error, offset))?;
        if found != expected {
            bail!("{path}: truncated: {field} has {found} bytes, expected {expected}; fetch the file again");
        }
        Ok(bytes)
    };
    let words = |bytes: Vec<u8>| -> Vec<u32> {
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_be_bytes(*word)).collect()
    };
    let (found, expected) = (words(read("magic number", 4)?)[0], 0x0801 + size.len() as u32);
    if found != expected {
        bail!(
            "{path}: magic number is {found:#010x}, expected {expected:#010x} ({kind}); check that it is the right file"
        );
    }
    let dimensions = words(read("dimensions", 4 + 4 * size.len() as u64)?);
    let count = dimensions[0];
    if !(1..=MOST_ITEMS).contains(&count) {
        bail!("{path}: number of items is {count}, expected 1 to {MOST_ITEMS}");
    }
    if let ([rows, columns], [height, width]) = (&dimensions[1..], size)
        && dimensions[1..] != *size
    {
        bail!("{path}: images are {rows}x{columns} pixels, expected {height}x{width}");
    }
    let bytes = read(field, u64::from(count) * u64::from(size.iter().product::<u32>()))?;
    // Reading to the end also verifies gzip's checksum.
    let rest = io::copy(&mut reader.take(1 << 30), &mut io::sink());
    match rest.map_err(|error| failed(error, offset))? {
        0 => Ok(bytes),
        rest => bail!(
            "{path}: {} bytes, but its header states {offset}: trailing bytes or a wrong count",
            offset + rest
        ),
    }
}
