//! `manifest.json`: metadata and checksums of a checkpoint.

use crate::{config::Config, run::log::Progress};
use anyhow::Result;
use collective::strategy::{Position, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// Checkpoint format version that this program writes and reads.
pub const FORMAT: u64 = 2;

/// File name in the checkpoint folder.
pub(super) const NAME: &str = "manifest.json";

/// Metadata of a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of burn-ddp that wrote the checkpoint.
    pub version: String,
    pub position: Position,
    pub world_size: usize,
    /// Samples per rank and batch.
    pub batch_size: usize,
    /// Settings that a resumed run must share, by flag or name.
    pub identity: Map<String, Value>,
    pub progress: Progress,
    /// Size and checksum of the files of the snapshot's records, by name.
    pub files: BTreeMap<String, FileDigest>,
}

/// Expected size and checksum of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileDigest {
    pub bytes: u64,
    /// CRC-32 of ISO-HDLC, as in gzip and PNG.
    pub crc32: u32,
}

/// Error of reading a checkpoint.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The folder is not a checkpoint.
    #[error("{path} is not a checkpoint: {reason}")]
    Foreign { path: PathBuf, reason: String },
    /// A file is missing, unreadable or has a wrong checksum.
    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
    /// A version with another format wrote the checkpoint.
    #[error(
        "{path} was written by burn-ddp {version} in format {format}, but this is {} and reads format {FORMAT}; \
         use that version", env!("CARGO_PKG_VERSION")
    )]
    OtherFormat { path: PathBuf, version: String, format: u64 },
}

impl FileDigest {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self { bytes: bytes.len() as u64, crc32: crc32fast::hash(bytes) }
    }
}

/// Returns file names and contents of a snapshot's records.
pub(super) fn files(snapshot: &Snapshot) -> impl Iterator<Item = (String, &[u8])> {
    snapshot.records.iter().map(|(name, record)| (format!("{name}.bpk"), record.as_slice()))
}

impl Manifest {
    /// Describes `snapshot`, taken in a run of `config`.
    ///
    /// # Errors
    /// If the configuration cannot be serialised as JSON.
    pub fn new(snapshot: &Snapshot, config: &Config, progress: Progress) -> Result<Self> {
        let digest = |(name, bytes): (String, &[u8])| (name, FileDigest::from_bytes(bytes));
        Ok(Self {
            version: env!("CARGO_PKG_VERSION").into(),
            position: snapshot.position.clone(),
            world_size: config.world_size,
            batch_size: config.args.batch_size,
            identity: config.identity()?,
            progress,
            files: files(snapshot).map(digest).collect(),
        })
    }

    /// Serialises the manifest with its format version and checksum.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let manifest = serde_json::to_value(self)?;
        let crc32 = crc32fast::hash(&serde_json::to_vec(&manifest)?);
        serde_json::to_vec_pretty(&json!({ "format": FORMAT, "crc32": crc32, "manifest": manifest }))
    }

    /// Reads the manifest of the checkpoint folder `path` and verifies its checksum.
    ///
    /// # Errors
    /// If the folder is not a checkpoint, is damaged, or has another format.
    pub fn read(path: &Path) -> Result<Self, CheckpointError> {
        let foreign = |reason: String| CheckpointError::Foreign { path: path.to_owned(), reason };
        let damaged = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
        let text = match fs::read(path.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(foreign(format!("it has no {NAME}")));
            }
            Err(error) => return Err(damaged(format!("{NAME}: {error}"))),
        };
        let whole: Value = serde_json::from_slice(&text).map_err(|e| damaged(format!("{NAME}: {e}")))?;
        let Some(format) = whole["format"].as_u64() else {
            return Err(foreign(format!("its {NAME} has no format version")));
        };
        if format != FORMAT {
            let version = whole["manifest"]["version"].as_str().unwrap_or("of an unknown version").into();
            return Err(CheckpointError::OtherFormat { path: path.to_owned(), version, format });
        }
        let packed = serde_json::to_vec(&whole["manifest"]).map_err(|e| damaged(e.to_string()))?;
        if whole["crc32"] != crc32fast::hash(&packed) {
            return Err(damaged(format!("{NAME} has a wrong checksum")));
        }
        serde_json::from_slice(&packed).map_err(|e| damaged(format!("{NAME}: {e}")))
    }

    /// Loads the tensors and verifies the size and checksum of each file.
    ///
    /// # Errors
    /// If a file is missing, unreadable or has a wrong size or checksum.
    pub fn load(&self, path: &Path) -> Result<Snapshot, CheckpointError> {
        let damaged = |reason: String| CheckpointError::Damaged { path: path.to_owned(), reason };
        let load = |(name, wanted): (&String, &FileDigest)| {
            let bytes = fs::read(path.join(name)).map_err(|e| damaged(format!("{name}: {e}")))?;
            let found = bytes.len() as u64;
            if found != wanted.bytes {
                return Err(damaged(format!("{name} has {found} bytes, not {}", wanted.bytes)));
            }
            if FileDigest::from_bytes(&bytes) != *wanted {
                return Err(damaged(format!("{name} does not have the checksum it had when it was written")));
            }
            Ok((name.trim_end_matches(".bpk").to_owned(), bytes))
        };
        let records = self.files.iter().map(load).collect::<Result<_, _>>()?;
        Ok(Snapshot { position: self.position.clone(), records })
    }
}
