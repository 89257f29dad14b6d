//! Reader of IDX files, the format of MNIST.
//!
//! All values in a file are validated before use, and no header causes an allocation beyond the file's content.
//!
//! An IDX file has a big-endian magic number (two zero bytes, the element type, the number of dimensions), each
//! dimension as a big-endian `u32`, then the elements. Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of
//! handwritten digits".

use super::{CLASSES, DataError, Images, PIXELS, SIDE};
use flate2::bufread::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, ErrorKind, Read},
    path::Path,
};

/// Maximum number of images; the largest known drop-in, MNIST8M, has 8,100,000.
const MOST_ITEMS: u32 = 10_000_000;
/// Maximum number of bytes reserved from a header; further memory grows with the bytes read.
const RESERVE: u64 = 64 << 20;

/// Reads a file of images and the file of their labels, each plain or gzipped.
pub fn read(images: &Path, labels: &Path) -> Result<Images, DataError> {
    let open = |path| {
        let file = File::open(path).map_err(DataError::io("open", path))?;
        Ok(BufReader::with_capacity(1 << 16, file))
    };
    decode((images, open(images)?), (labels, open(labels)?))
}

/// Decodes images and their labels, each plain or gzipped. The paths are for errors.
pub fn decode<'a, R: BufRead + 'a>(
    (images, pixels): (&'a Path, R),
    (labels, classes): (&'a Path, R),
) -> Result<Images, DataError> {
    let pixels = Idx::new(images, pixels)?.images()?;
    let classes = Idx::new(labels, classes)?.labels()?;
    if pixels.len() != classes.len() * PIXELS {
        return Err(DataError::Mismatch {
            images_path: images.into(),
            images: pixels.len() / PIXELS,
            labels_path: labels.into(),
            labels: classes.len(),
        });
    }
    Ok(Images::new(pixels, classes))
}

/// Decompresses `reader` if it begins with gzip's magic number.
pub fn decompressed<'a>(mut reader: impl BufRead + 'a) -> io::Result<(Box<dyn Read + 'a>, Encoding)> {
    match reader.fill_buf()?.starts_with(&[0x1f, 0x8b]) {
        // All members up to the end of the file, so that bytes after the last are detected.
        true => Ok((Box::new(MultiGzDecoder::new(reader)), Encoding::Gzip)),
        false => Ok((Box::new(reader), Encoding::Plain)),
    }
}

/// Encoding of a file or a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    Plain,
    Gzip,
}

/// An IDX file being read.
struct Idx<'a> {
    path: &'a Path,
    reader: Box<dyn Read + 'a>,
    encoding: Encoding,
    /// Uncompressed bytes read so far.
    offset: u64,
}

impl<'a> Idx<'a> {
    fn new(path: &'a Path, reader: impl BufRead + 'a) -> Result<Self, DataError> {
        let (reader, encoding) = decompressed(reader).map_err(DataError::io("read", path))?;
        Ok(Idx { path, reader, encoding, offset: 0 })
    }

    fn images(mut self) -> Result<Vec<u8>, DataError> {
        let [count, rows, columns] = self.header(0x0803, "images")?;
        if (rows, columns) != (SIDE as u32, SIDE as u32) {
            return Err(DataError::ImageSize { path: self.path.into(), rows, columns });
        }
        self.body("pixel data", u64::from(count) * PIXELS as u64)
    }

    fn labels(mut self) -> Result<Vec<u8>, DataError> {
        let [count] = self.header(0x0801, "labels")?;
        let path = self.path;
        let labels = self.body("label data", u64::from(count))?;
        match labels.iter().position(|&label| usize::from(label) >= CLASSES) {
            Some(index) => Err(DataError::Label { path: path.into(), index, label: labels[index] }),
            None => Ok(labels),
        }
    }

    /// Reads the dimensions and validates the first, which is the number of items.
    fn header<const N: usize>(&mut self, expected: u32, kind: &'static str) -> Result<[u32; N], DataError> {
        let [found] = self.words("magic number")?;
        if found != expected {
            return Err(DataError::Magic { path: self.path.into(), kind, expected, found });
        }
        let dimensions: [u32; N] = self.words("dimensions")?;
        match dimensions[0] {
            1..=MOST_ITEMS => Ok(dimensions),
            found => Err(DataError::Count { path: self.path.into(), found, limit: MOST_ITEMS }),
        }
    }

    fn words<const N: usize>(&mut self, field: &'static str) -> Result<[u32; N], DataError> {
        let bytes = self.bytes(field, 4 * N as u64)?;
        let (words, _) = bytes.as_chunks::<4>();
        Ok(std::array::from_fn(|i| u32::from_be_bytes(words[i])))
    }

    /// Reads the last field, after which the file must end.
    fn body(&mut self, field: &'static str, length: u64) -> Result<Vec<u8>, DataError> {
        let bytes = self.bytes(field, length)?;
        let expected = self.offset;
        // Reading to the end also verifies gzip's checksum.
        let rest = io::copy(&mut self.reader.by_ref().take(1 << 30), &mut io::sink());
        match rest.map_err(|error| self.failed(error))? {
            0 => Ok(bytes),
            rest => Err(DataError::Trailing { path: self.path.into(), expected, found: expected + rest }),
        }
    }

    fn bytes(&mut self, field: &'static str, expected: u64) -> Result<Vec<u8>, DataError> {
        let mut bytes = Vec::with_capacity(expected.min(RESERVE) as usize);
        let result = self.reader.by_ref().take(expected).read_to_end(&mut bytes);
        let found = bytes.len() as u64;
        self.offset += found;
        result.map_err(|error| self.failed(error))?;
        match found == expected {
            true => Ok(bytes),
            false => Err(DataError::Truncated { path: self.path.into(), field, expected, found }),
        }
    }

    fn failed(&self, error: io::Error) -> DataError {
        let damage = [ErrorKind::InvalidInput, ErrorKind::InvalidData, ErrorKind::UnexpectedEof];
        match self.encoding {
            Encoding::Gzip if damage.contains(&error.kind()) => {
                DataError::Gzip { path: self.path.into(), offset: self.offset, reason: error.to_string() }
            }
            Encoding::Gzip | Encoding::Plain => DataError::io("read", self.path)(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::fixture::{gzip, idx, images, labels},
        *,
    };
    use std::fs;

    /// Writes and reads these files.
    fn reading(images: &[u8], labels: &[u8]) -> Result<Images, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["images", "labels"].map(|name| folder.path().join(name));
        fs::write(&paths[0], images).unwrap();
        fs::write(&paths[1], labels).unwrap();
        read(&paths[0], &paths[1])
    }

    /// The error for a file of images, without the folder.
    fn images_error(bytes: &[u8]) -> String {
        let error = reading(bytes, &labels(3)).unwrap_err().to_string();
        error[error.find("images").unwrap()..].to_string()
    }

    #[test]
    fn plain_and_gzipped_files_are_read_alike() {
        let (pixels, classes) = (images(12), labels(12));
        let plain = reading(&pixels, &classes).unwrap();
        assert_eq!(plain.pixels(), &pixels[16..]);
        assert_eq!(plain.labels(), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        assert_eq!(plain, reading(&gzip(&pixels), &classes).unwrap());
        // A gzip file may have several members.
        let (head, tail) = pixels.split_at(5000);
        assert_eq!(plain, reading(&[gzip(head), gzip(tail)].concat(), &gzip(&classes)).unwrap());
    }

    #[test]
    fn a_wrong_magic_number_is_shown() {
        assert_eq!(
            images_error(&labels(3)),
            "images: magic number is 0x00000801, expected 0x00000803 (images); check that it is the right file"
        );
        assert!(images_error(b"<html>").contains("magic number is 0x3c68746d"));
    }

    #[test]
    fn a_truncated_field_is_named() {
        let whole = images(3);
        for (length, what) in [
            (0, "magic number has 0 bytes, expected 4"),
            (3, "magic number has 3 bytes, expected 4"),
            (15, "dimensions has 11 bytes, expected 12"),
            (16, "pixel data has 0 bytes, expected 2352"),
            (whole.len() - 1, "pixel data has 2351 bytes, expected 2352"),
        ] {
            let expected = format!("images: truncated: {what}; fetch the file again");
            assert_eq!(images_error(&whole[..length]), expected);
            if length > 0 {
                assert_eq!(images_error(&gzip(&whole[..length])), expected);
            }
        }
        let error = reading(&whole, &labels(3)[..10]).unwrap_err();
        assert!(
            matches!(error, DataError::Truncated { field: "label data", expected: 3, found: 2, .. }),
            "{error}"
        );
    }

    #[test]
    fn trailing_bytes_are_counted() {
        let mut long = images(3);
        long.extend([0; 10]);
        let expected = "images: 2378 bytes, but its header states 2368: trailing bytes or a wrong count";
        assert_eq!(images_error(&long), expected);
        assert_eq!(images_error(&gzip(&long)), expected);
    }

    #[test]
    fn a_header_does_not_make_the_program_allocate() {
        let huge = idx(0x0803, &[u32::MAX, 28, 28], &[]);
        let expected = "images: number of items is 4294967295, expected 1 to 10000000";
        assert_eq!(images_error(&huge), expected);
        assert_eq!(images_error(&gzip(&huge)), expected);
        assert!(images_error(&idx(0x0803, &[0, 28, 28], &[])).contains("number of items is 0"));
        // The maximum of 7.8 GB is not reserved in advance.
        let most = idx(0x0803, &[MOST_ITEMS, 28, 28], &[1; 100]);
        assert!(images_error(&most).contains("pixel data has 100 bytes, expected 7840000000"));
    }

    #[test]
    fn images_must_be_28_by_28() {
        assert_eq!(
            images_error(&idx(0x0803, &[1, 32, 16], &[0; 512])),
            "images: images are 32x16 pixels, expected 28x28"
        );
    }

    #[test]
    fn numbers_of_images_and_labels_must_match() {
        let error = reading(&images(3), &labels(4)).unwrap_err();
        assert!(matches!(error, DataError::Mismatch { images: 3, labels: 4, .. }), "{error}");
        assert!(error.to_string().contains("images holds 3 images, but "), "{error}");
        assert!(error.to_string().ends_with("labels holds 4 labels"), "{error}");
    }

    #[test]
    fn a_label_beyond_9_is_named() {
        let error = reading(&images(3), &idx(0x0801, &[3], &[9, 0, 10])).unwrap_err();
        assert!(matches!(error, DataError::Label { index: 2, label: 10, .. }), "{error}");
        assert!(error.to_string().ends_with("labels: label 2 is 10, expected 0 to 9"), "{error}");
    }

    #[test]
    fn gzip_damage_is_an_error_at_every_position() {
        let whole = gzip(&images(3));
        for length in [2, 9, whole.len() / 2, whole.len() - 1] {
            let error = images_error(&whole[..length]);
            assert!(error.starts_with("images: gzip data damaged after "), "{length}: {error}");
        }
        let mut sum = whole.clone();
        let at = sum.len() - 8;
        sum[at] ^= 1;
        assert!(
            images_error(&sum).starts_with("images: gzip data damaged after 2368 "),
            "{}",
            images_error(&sum)
        );
        let rubbish = [&whole[..], b"rubbish at the end"].concat();
        assert!(images_error(&rubbish).starts_with("images: gzip data damaged after 2368 "));
        // Damage of any byte of the content is detected.
        for at in (10..whole.len()).step_by(7) {
            let mut bad = whole.clone();
            bad[at] ^= 0x55;
            assert!(reading(&bad, &labels(3)).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named() {
        let error = read(Path::new("nowhere/images"), Path::new("nowhere/labels")).unwrap_err().to_string();
        assert!(error.starts_with("cannot open nowhere/images: "), "{error}");
    }
}
