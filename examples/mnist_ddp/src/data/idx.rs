//! Reader of IDX files, the format of MNIST.
//!
//! An IDX file has a big-endian magic number (two zero bytes, the element type, the number of dimensions), each
//! dimension as a big-endian `u32`, then the elements. All values are validated before use. Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten
//! digits".

use super::{CLASSES, Images, PIXELS, SIDE};
use anyhow::{Context, Result, bail};
use burn_ddp::data::download::decompressed;
use std::{
    fs::File,
    io::{BufRead, BufReader, ErrorKind, Read},
    path::Path,
};

/// Maximum number of images; the largest known drop-in, MNIST8M, has 8,100,000.
const MOST_ITEMS: u32 = 10_000_000;
/// Maximum number of bytes read from a file.
const MOST_BYTES: u64 = MOST_ITEMS as u64 * PIXELS as u64 + (1 << 30);

/// Reads a file of images and the file of their labels, each plain or gzipped.
///
/// # Errors
/// If a file cannot be read or is damaged. The error names the file and the field.
pub fn read(images: &Path, labels: &Path) -> Result<Images> {
    let open = |path: &Path| {
        let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
        anyhow::Ok(BufReader::with_capacity(1 << 16, file))
    };
    decode((images, open(images)?), (labels, open(labels)?))
}

/// Decodes images and their labels as [`read`] does. The paths are for errors.
///
/// # Errors
/// As for [`read`].
pub fn decode<R: BufRead>((images, pixels): (&Path, R), (labels, classes): (&Path, R)) -> Result<Images> {
    let pixels = items(images, pixels, "images", "pixel data", &[SIDE as u32; 2])?;
    let classes = items(labels, classes, "labels", "label data", &[])?;
    if pixels.len() != classes.len() * PIXELS {
        let (count, labelled) = (pixels.len() / PIXELS, classes.len());
        bail!("{} holds {count} images, but {} holds {labelled} labels", images.display(), labels.display());
    }
    if let Some(at) = classes.iter().position(|label| usize::from(*label) >= CLASSES) {
        bail!("{}: label {at} is {}, expected 0 to {}", labels.display(), classes[at], CLASSES - 1);
    }
    Ok(Images::new(pixels, classes))
}

/// Reads the items of a file, whose header must state items of this size and after which it must end.
fn items(path: &Path, reader: impl BufRead, kind: &str, field: &str, size: &[u32]) -> Result<Vec<u8>> {
    let (path, mut bytes) = (path.display(), Vec::new());
    // Reading to the end also verifies gzip's checksum.
    let read = decompressed(reader).and_then(|reader| reader.take(MOST_BYTES).read_to_end(&mut bytes));
    if let Err(error) = read {
        // Plain files have no such errors.
        match error.kind() {
            ErrorKind::InvalidInput | ErrorKind::InvalidData | ErrorKind::UnexpectedEof => bail!(
                "{path}: gzip data damaged after {} decompressed bytes: {error}; fetch the file again",
                bytes.len()
            ),
            _ => bail!("cannot read {path}: {error}"),
        }
    }
    let part = |field: &str, from: usize, length: usize| {
        let found = bytes.len().saturating_sub(from);
        bytes.get(from..from + length).with_context(|| {
            format!("{path}: truncated: {field} has {found} bytes, expected {length}; fetch the file again")
        })
    };
    let words = |field: &str, from: usize, count: usize| -> Result<Vec<u32>> {
        let (words, _) = part(field, from, 4 * count)?.as_chunks::<4>();
        Ok(words.iter().map(|word| u32::from_be_bytes(*word)).collect())
    };
    let (found, expected) = (words("magic number", 0, 1)?[0], 0x0801 + size.len() as u32);
    if found != expected {
        bail!(
            "{path}: magic number is {found:#010x}, expected {expected:#010x} ({kind}); check that it is the right file"
        );
    }
    let dimensions = words("dimensions", 4, 1 + size.len())?;
    let count = dimensions[0];
    if !(1..=MOST_ITEMS).contains(&count) {
        bail!("{path}: number of items is {count}, expected 1 to {MOST_ITEMS}");
    }
    if let ([rows, columns], true) = (&dimensions[1..], dimensions[1..] != *size) {
        bail!("{path}: images are {rows}x{columns} pixels, expected {SIDE}x{SIDE}");
    }
    let (start, item) = (4 + 4 * dimensions.len(), size.iter().product::<u32>() as usize);
    let end = start + part(field, start, count as usize * item)?.len();
    if bytes.len() != end {
        bail!("{path}: {} bytes, but its header states {end}: trailing bytes or a wrong count", bytes.len());
    }
    Ok(bytes.split_off(start))
}
