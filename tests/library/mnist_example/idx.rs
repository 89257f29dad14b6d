//! Reading of IDX files, whole and damaged.

use super::small::{gzip, idx, images, labels};
use anyhow::Result;
use mnist::data::{CLASSES, Images, SIDE};
use std::{fs, path::Path};

/// Writes and reads these files.
fn reading(images: &[u8], labels: &[u8]) -> Result<Images> {
    let folder = tempfile::tempdir().unwrap();
    let paths = ["images", "labels"].map(|name| folder.path().join(name));
    fs::write(&paths[0], images).unwrap();
    fs::write(&paths[1], labels).unwrap();
    Images::read_idx(&paths[0], &paths[1], SIDE, CLASSES)
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
    assert_eq!(plain.pixels[..], pixels[16..]);
    assert_eq!(plain.labels[..], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
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
    let error = reading(&whole, &labels(3)[..10]).unwrap_err().to_string();
    assert!(error.contains("truncated: label data has 2 bytes, expected 3"), "{error}");
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
    let most = idx(0x0803, &[10_000_000, 28, 28], &[1; 100]);
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
    assert!(error.to_string().contains("images holds 3 images, but "), "{error}");
    assert!(error.to_string().ends_with("labels holds 4 labels"), "{error}");
}

#[test]
fn a_label_beyond_9_is_named() {
    let error = reading(&images(3), &idx(0x0801, &[3], &[9, 0, 10])).unwrap_err();
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
    let nowhere = ["nowhere/images", "nowhere/labels"].map(Path::new);
    let error = Images::read_idx(nowhere[0], nowhere[1], SIDE, CLASSES).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.starts_with("cannot open nowhere/images: "), "{error}");
}
