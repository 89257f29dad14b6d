//! PNG encoder (ISO/IEC 15948) for 8-bit greyscale images.

use flate2::{Compression, write::ZlibEncoder};
use std::io::Write;

/// Encodes an 8-bit greyscale image: `pixels` row by row from the top, 0 is black.
///
/// # Panics
/// If `width` is 0 or does not divide the number of pixels.
pub fn grey(width: usize, pixels: &[u8]) -> Vec<u8> {
    assert!(width > 0 && pixels.len().is_multiple_of(width), "whole rows");
    let size = |pixels: usize| (pixels as u32).to_be_bytes();
    // Bit depth 8, greyscale, and the default compression, filter and interlace methods.
    let header = [&size(width)[..], &size(pixels.len() / width), &[8, 0, 0, 0, 0]].concat();
    // Each row starts with its filter type: none.
    let rows: Vec<u8> = pixels.chunks(width).flat_map(|row| [&[0], row].concat()).collect();
    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::default());
    // Writing to memory does not fail.
    let data = zlib.write_all(&rows).and_then(|()| zlib.finish()).unwrap_or_default();
    let chunks = [chunk(b"IHDR", &header), chunk(b"IDAT", &data), chunk(b"IEND", &[])];
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

/// Encodes a chunk: length, type, data, and CRC of type and data.
fn chunk(kind: &[u8; 4], data: &[u8]) -> Vec<u8> {
    let mut crc = crc32fast::Hasher::new();
    crc.update(kind);
    crc.update(data);
    let length = (data.len() as u32).to_be_bytes();
    [&length[..], kind, data, &crc.finalize().to_be_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn a_picture_has_the_chunks_and_the_rows_of_the_standard() {
        let png = grey(3, &[0, 128, 255, 1, 2, 3]);
        assert_eq!(&png[..16], b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR");
        assert_eq!(&png[16..29], [0, 0, 0, 3, 0, 0, 0, 2, 8, 0, 0, 0, 0]);
        // The IEND chunk is the same in every PNG file.
        assert_eq!(&png[png.len() - 12..], b"\0\0\0\0IEND\xae\x42\x60\x82");
        let length = u32::from_be_bytes([png[33], png[34], png[35], png[36]]) as usize;
        assert_eq!(&png[37..41], b"IDAT");
        let mut rows = Vec::new();
        flate2::read::ZlibDecoder::new(&png[41..41 + length]).read_to_end(&mut rows).expect("zlib");
        assert_eq!(rows, [0, 0, 128, 255, 0, 1, 2, 3]);
    }
}
