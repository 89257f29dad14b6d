//! `manifest.json`: what a checkpoint holds, and how a damaged, foreign or newer one is told.

use super::Identity;
use crate::run::log::Progress;
use collective::strategy::{Position, Snapshot};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::{
    collections::BTreeMap,
    fs, io,
    path::{Path, PathBuf},
};

/// The format that this program writes, and the newest one it reads.
pub const FORMAT: u64 = 1;

/// Its name in a checkpoint's folder.
pub(super) const NAME: &str = "manifest.json";

/// Everything about a checkpoint but the tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Of burn-ddp.
    pub version: String,
    pub position: Position,
    pub world_size: usize,
    /// Samples a rank and batch.
    pub batch_size: usize,
    pub identity: Identity,
    pub progress: Progress,
    /// The other files, by name.
    pub files: BTreeMap<String, Sum>,
}

/// What a file must be.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sum {
    pub bytes: u64,
    /// In hex.
    pub sha256: String,
}

/// Why a checkpoint is not read.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    #[error("{path} is no checkpoint: {reason}")]
    Foreign { path: PathBuf, reason: String },
    #[error("{path} is damaged: {reason}")]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} was written by burn-ddp {version} in format {format}, but this is {} and reads formats up to {FORMAT}; \
         use that version or a newer one", env!("CARGO_PKG_VERSION")
    )]
    Newer { path: PathBuf, version: String, format: u64 },
}

impl Sum {
    fn of(bytes: &[u8]) -> Self {
        let sha256 = hex::encode(Sha256::digest(bytes));
        Self { bytes: bytes.len() as u64, sha256 }
    }
}

/// The files that hold a snapshot's parts.
pub(super) fn parts(snapshot: &Snapshot) -> [(&'static str, &[u8]); 3] {
    [
        ("model.bpk", &snapshot.model),
        ("optimizer.bpk", &snapshot.optimizer),
        ("scheduler.bpk", &snapshot.scheduler),
    ]
}

impl Manifest {
    /// Notes what the files of `snapshot` are.
    pub(super) fn describe(mut self, snapshot: &Snapshot) -> Self {
        self.position = snapshot.position.clone();
        self.files =
            parts(snapshot).into_iter().map(|(name, bytes)| (name.to_owned(), Sum::of(bytes))).collect();
        self
    }

    /// With the format, and a checksum of its own.
    pub(super) fn to_bytes(&self) -> serde_json::Result<Vec<u8>> {
        let manifest = serde_json::to_value(self)?;
        let sha256 = Sum::of(&serde_json::to_vec(&manifest)?).sha256;
        serde_json::to_vec_pretty(&json!({ "format": FORMAT, "sha256": sha256, "manifest": manifest }))
    }

    /// Of the checkpoint in the folder `path`, checked against its own checksum.
    ///
    /// # Errors
    /// Why it is refused.
    pub fn read(path: &Path) -> Result<Self, Refusal> {
        let foreign = |reason: String| Refusal::Foreign { path: path.to_owned(), reason };
        let damaged = |reason: String| Refusal::Damaged { path: path.to_owned(), reason };
        let text = match fs::read(path.join(NAME)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(foreign(format!("it has no {NAME}")));
            }
            Err(error) => return Err(damaged(format!("{NAME}: {error}"))),
        };
        let whole: Value = serde_json::from_slice(&text).map_err(|e| damaged(format!("{NAME}: {e}")))?;
        let Some(format) = whole["format"].as_u64() else {
            return Err(foreign(format!("its {NAME} names no format")));
        };
        if format > FORMAT {
            let version = whole["manifest"]["version"].as_str().unwrap_or("of an unknown version").into();
            return Err(Refusal::Newer { path: path.to_owned(), version, format });
        }
        let packed = serde_json::to_vec(&whole["manifest"]).map_err(|e| damaged(e.to_string()))?;
        if whole["sha256"] != Sum::of(&packed).sha256 {
            return Err(damaged(format!("{NAME} does not have the checksum it should have")));
        }
        serde_json::from_slice(&packed).map_err(|e| damaged(format!("{NAME}: {e}")))
    }

    /// The checkpoint's tensors, each file checked against its length and checksum.
    ///
    /// # Errors
    /// The first file that is not what it was.
    pub fn load(&self, path: &Path) -> Result<Snapshot, Refusal> {
        let damaged = |reason: String| Refusal::Damaged { path: path.to_owned(), reason };
        let load = |name: &str| {
            let wanted =
                self.files.get(name).ok_or_else(|| damaged(format!("{NAME} does not name {name}")))?;
            let bytes = fs::read(path.join(name)).map_err(|e| damaged(format!("{name}: {e}")))?;
            let found = bytes.len() as u64;
            if found != wanted.bytes {
                return Err(damaged(format!("{name} has {found} bytes, not {}", wanted.bytes)));
            }
            if Sum::of(&bytes) != *wanted {
                return Err(damaged(format!("{name} does not have the checksum it had when it was written")));
            }
            Ok(bytes)
        };
        Ok(Snapshot {
            position: self.position.clone(),
            model: load("model.bpk")?,
            optimizer: load("optimizer.bpk")?,
            scheduler: load("scheduler.bpk")?,
        })
    }
}
