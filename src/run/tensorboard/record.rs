//! A file of records as TensorFlow frames them (TFRecord): length, its checksum, the bytes, their
//! checksum. Format: tensorflow/core/lib/io/record_writer.h.

use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};

/// CRC-32C, turned and moved so that a checksum of bytes that hold checksums stays a good one.
fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xA282_EAD8)
}

/// One record with its frame.
pub fn frame(bytes: &[u8]) -> Vec<u8> {
    let length = (bytes.len() as u64).to_le_bytes();
    let crc = |bytes| masked_crc(bytes).to_le_bytes();
    [&length[..], &crc(&length), bytes, &crc(bytes)].concat()
}

/// A file of records that is being written.
pub struct RecordFile {
    file: BufWriter<File>,
}

impl RecordFile {
    /// A new file at `path`, where there is none yet.
    ///
    /// # Errors
    /// If there is one, or it cannot be created.
    pub fn create(path: &Path) -> io::Result<Self> {
        Ok(Self { file: BufWriter::new(File::create_new(path)?) })
    }

    /// Appends one record, to memory at first.
    ///
    /// # Errors
    /// If a full buffer cannot be written.
    pub fn append(&mut self, record: &[u8]) -> io::Result<()> {
        self.file.write_all(&frame(record))
    }

    /// Writes what is in memory, for readers to see.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_the_castagnoli_polynomial() {
        // Of the nine digits, as every catalogue of checksums has it, and of 32 zeros and 32 ones
        // as RFC 3720 (B.4) has them.
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
        // The bytes of TensorBoard's own RecordWriter for b"foo".
        let known = [3, 0, 0, 0, 0, 0, 0, 0, 176, 153, 73, 14, 102, 111, 111, 97, 138, 190, 254];
        assert_eq!(frame(b"foo"), known);
    }
}
