//! TFRecord files: each record is its length, the length's CRC, the data and the data's CRC.
//!
//! The format is defined in tensorflow/core/lib/io/record_writer.h.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

/// Computes TFRecord's masked CRC-32C, which stays effective for data that contains CRCs.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// Frames one record.
pub fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let crc = |bytes| masked_crc(bytes).to_le_bytes();
    [&length[..], &crc(&length), bytes, &crc(bytes)].concat()
}

/// Buffered writer of a TFRecord file.
pub struct RecordFile {
    file: BufWriter<File>,
}

impl RecordFile {
    /// Creates a new file at `path`.
    ///
    /// # Errors
    /// If the file exists or cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(File::create_new(path)?) })
    }

    /// Appends a record to the buffer.
    ///
    /// # Errors
    /// If the buffer is full and cannot be written.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.file.write_all(&frame(record))
    }

    /// Writes the buffer to the file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_castagnoli_polynomial() {
        // The standard check value of CRC-32C, and the vectors of 32 zeros and 32 ones in RFC 3720 (B.4).
        for (bytes, crc) in
            [(&b"123456789"[..], 0xE306_9283_u32), (&[0; 32], 0x8A91_36AA), (&[0xFF; 32], 0x62A8_AB43)]
        {
            assert_eq!(crc32c::crc32c(bytes), crc);
            let back = masked_crc(bytes).wrapping_sub(0xA282_EAD8).rotate_left(15);
            assert_eq!(back, crc);
        }
    }

    #[test]
    fn a_frame_is_what_tensorflow_writes() {
        // Written by TensorBoard's RecordWriter for b"foo".
        let known = [3, 0, 0, 0, 0, 0, 0, 0, 176, 153, 73, 14, 102, 111, 111, 97, 138, 190, 254];
        assert_eq!(frame(b"foo"), known);
    }
}
