//! Camera orientation from a JPEG's Exif data (Exif 2.32, tag 0x0112).

/// Reads the orientation from Exif data (a TIFF header and its first directory), a number from 1 to 8, if it has one.
pub(super) fn orientation(exif: &[u8]) -> Option<u16> {
    tag(exif, 0x0112)
}

/// The value of a tag with one short number.
fn tag(exif: &[u8], wanted: u16) -> Option<u16> {
    let little = match exif.get(..2)? {
        b"II" => true,
        b"MM" => false,
        _ => return None,
    };
    let short = |at: usize| {
        let bytes = exif.get(at..at.checked_add(2)?)?.try_into().ok()?;
        Some(if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) })
    };
    let long = |at: usize| {
        let bytes = exif.get(at..at.checked_add(4)?)?.try_into().ok()?;
        Some(if little { u32::from_le_bytes(bytes) } else { u32::from_be_bytes(bytes) })
    };
    let directory = long(4)? as usize;
    let entries = short(directory)?;
    // Each entry has tag, type, count and value, in twelve bytes.
    (0..usize::from(entries)).map(|entry| directory + 2 + 12 * entry).find_map(|entry| {
        (short(entry)? == wanted && short(entry + 2)? == 3).then(|| short(entry + 8)).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_orientation_is_found_in_either_byte_order() {
        let little = b"II*\0\x08\0\0\0\x02\0\x0f\x01\x02\0\x01\0\0\0abcd\x12\x01\x03\0\x01\0\0\0\x06\0\0\0";
        assert_eq!(orientation(little), Some(6));
        let big = b"MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x03\0\0";
        assert_eq!(orientation(big), Some(3));
        for cut in 0..little.len() - 3 {
            let _ = orientation(&little[..cut]);
        }
        assert_eq!(orientation(b"II*\0\xff\xff\xff\xff"), None);
        assert_eq!(orientation(b""), None);
    }
}
