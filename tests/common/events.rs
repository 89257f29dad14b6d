//! Reader of TensorBoard's event files.

use super::Run;
use std::{collections::BTreeMap, fs, path::PathBuf};

/// Step and value of each point of a scalar.
pub type Scalars = BTreeMap<String, Vec<(u64, f64)>>;

/// The event files of a run, in the order in which TensorBoard reads them.
pub fn files(run: &Run) -> Vec<PathBuf> {
    let folder = fs::read_dir(run.path.join("tensorboard")).expect("the folder");
    let mut files: Vec<PathBuf> = folder.map(|entry| entry.expect("an entry").path()).collect();
    files.sort();
    files
}

/// A field of a message: its number, and either the bits of a number or bytes.
pub type Field<'a> = (u64, u64, &'a [u8]);

/// The fields of a message.
pub fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let (mut value, mut shift) = (0, 0);
        loop {
            let (byte, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(byte & 0x7F) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }
    let mut found = Vec::new();
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let (number, length) = match key & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes")), 8),
            2 => (0, varint(&mut bytes) as usize),
            5 => (u64::from(u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"))), 4),
            other => panic!("wire type {other}"),
        };
        found.push((key >> 3, number, &bytes[..length]));
        bytes = &bytes[length..];
    }
    found
}

/// Combines the events as TensorBoard does: a restart at a step replaces the points from that step.
///
/// `read` extracts a number from a summary's value.
pub fn points(run: &Run, read: impl Fn(&[Field<'_>]) -> Option<f64>) -> Scalars {
    let mut all = Scalars::new();
    for file in files(run) {
        let bytes = fs::read(&file).expect("an event file");
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let length = u64::from_le_bytes(rest[..8].try_into().expect("8 bytes")) as usize;
            let event = fields(&rest[12..12 + length]);
            rest = &rest[12 + length + 4..];
            let step = event.iter().find(|field| field.0 == 2).map_or(0, |field| field.1);
            for (number, _, message) in event {
                match number {
                    5 => {
                        let value = fields(fields(message)[0].2);
                        let tag = String::from_utf8(value[0].2.to_vec()).expect("text");
                        if let Some(number) = read(&value) {
                            all.entry(tag).or_default().push((step, number));
                        }
                    }
                    7 => all.values_mut().for_each(|points| points.retain(|point| point.0 < step)),
                    _ => {}
                }
            }
        }
    }
    all
}

/// A number of each histogram: 4 is the sum of the values, 5 that of their squares.
pub fn histograms(run: &Run, number: u64) -> Scalars {
    points(run, |value| {
        let histogram = fields(value.iter().find(|field| field.0 == 5)?.2);
        let (_, bits, _) = histogram.iter().find(|field| field.0 == number)?;
        Some(f64::from_bits(*bits))
    })
}
