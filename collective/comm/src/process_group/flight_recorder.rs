//! The flight recorder: the last 256 calls of this rank in one group.
//!
//! It reports this rank's position to the control plane, finds calls that have waited long, and is written to a file
//! when the group fails.

use crate::{Error, Result, communicator::Call, rendezvous::wire::Place, sync::lock};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    io::Write,
    path::{Path, PathBuf},
    sync::Mutex,
    time::{Duration, Instant, SystemTime},
};

/// Number of calls that are kept.
const KEPT: usize = 256;
/// Time after which a waiting call is inquired about; doubled after each inquiry.
const INQUIRY_INTERVAL: Duration = Duration::from_millis(500);
const MAX_INQUIRY_INTERVAL: Duration = Duration::from_secs(30);

/// World ranks of a message's sender and receiver.
pub(super) type Endpoints = (usize, usize);

#[derive(Debug)]
struct Entry {
    recorded: RecordedCall,
    /// Set for a message, which is not numbered among the collectives.
    message: Option<Endpoints>,
    begun: Instant,
    /// Time since the beginning of the call at which the next inquiry is due.
    ask_after: Duration,
}

impl Entry {
    fn in_progress(&self) -> bool {
        self.recorded.took_us.is_none()
    }
}

/// The calls of one group on this rank.
#[derive(Debug, Default)]
pub(super) struct FlightRecorder(Mutex<VecDeque<Entry>>);

/// One call in a [`FlightRecord`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// The call.
    #[serde(flatten)]
    pub call: Call,
    /// Whether this is a message between two ranks; `seq` then counts messages from one rank to the other.
    #[serde(default)]
    pub direct: bool,
    /// Time of the call, in microseconds since 1970.
    pub begun_us: u64,
    /// Duration in microseconds; none if the call had not returned.
    pub took_us: Option<u64>,
    /// Error message, if the call failed.
    pub error: Option<String>,
}

/// Flight record of one rank: the content of `flight-rank<R>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// World rank of the writer.
    pub rank: usize,
    /// World ranks of the group.
    pub members: Vec<usize>,
    /// Id of the group; 0 for the group of all ranks.
    pub group: u64,
    /// Name of the machine.
    pub host: String,
    /// Process id of the writer.
    pub pid: u32,
    /// Time of writing, in microseconds since 1970.
    pub written_us: u64,
    /// First cause of the failure, as reported on this rank.
    pub error: String,
    /// Recorded calls, oldest first.
    pub calls: Vec<RecordedCall>,
}

impl FlightRecord {
    /// Writes the record into `folder`, which is created if necessary, and returns the file.
    pub(super) fn write(&self, folder: &Path) -> Result<PathBuf> {
        let name = match self.group {
            0 => format!("flight-rank{}.json", self.rank),
            group => format!("flight-rank{}-group{group:016x}.json", self.rank),
        };
        let path = folder.join(&name);
        let temporary = folder.join(format!(".{name}.{}", self.pid));
        let write = || {
            std::fs::create_dir_all(folder)?;
            let mut file = std::fs::File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)
        };
        write().map_err(|e| Error::io(format!("write the flight record {}", path.display()), &e))?;
        Ok(path)
    }
}

pub(super) fn microseconds(at: SystemTime) -> u64 {
    at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_micros() as u64)
}

impl FlightRecorder {
    pub fn enter(&self, call: &Call, message: Option<Endpoints>) {
        let mut entries = lock(&self.0);
        if entries.len() == KEPT {
            entries.pop_front();
        }
        let recorded = RecordedCall {
            call: call.clone(),
            direct: message.is_some(),
            begun_us: microseconds(SystemTime::now()),
            took_us: None,
            error: None,
        };
        entries.push_back(Entry { recorded, message, begun: Instant::now(), ask_after: INQUIRY_INTERVAL });
    }

    pub fn leave(&self, error: Option<&Error>) {
        if let Some(entry) = lock(&self.0).back_mut() {
            entry.recorded.took_us = Some(entry.begun.elapsed().as_micros() as u64);
            entry.recorded.error = error.map(Error::to_string);
        }
    }

    /// Position of this rank relative to the collective or message `seq`; `counter` is the number of the last
    /// one.
    pub fn place(&self, seq: u64, message: Option<Endpoints>, counter: u64) -> Place {
        let entries = lock(&self.0);
        let asked =
            entries.iter().rev().find(|entry| (entry.message, entry.recorded.call.seq) == (message, seq));
        let last = entries.back();
        let call = |entry: &Entry| entry.recorded.call.clone();
        Place {
            asked: asked.map(call),
            seq: counter,
            last: last.map(call),
            inside: last.is_some_and(Entry::in_progress),
            ..Place::default()
        }
    }

    /// The call in progress; for a message, with its sender and receiver.
    pub fn pending(&self) -> Option<(Call, Option<Endpoints>)> {
        let entries = lock(&self.0);
        let entry = entries.back().filter(|entry| entry.in_progress())?;
        Some((entry.recorded.call.clone(), entry.message))
    }

    /// The call in progress, its endpoints if it is a message, and the time waited, if an inquiry is due.
    pub fn stalled(&self) -> Option<(Call, Option<Endpoints>, Duration)> {
        let mut entries = lock(&self.0);
        let entry = entries.back_mut().filter(|entry| entry.in_progress())?;
        let waited = entry.begun.elapsed();
        if waited < entry.ask_after {
            return None;
        }
        entry.ask_after = waited + entry.ask_after.min(MAX_INQUIRY_INTERVAL);
        Some((entry.recorded.call.clone(), entry.message, waited))
    }

    pub fn calls(&self) -> Vec<RecordedCall> {
        lock(&self.0).iter().map(|entry| entry.recorded.clone()).collect()
    }
}
