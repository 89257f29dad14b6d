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
