//! The flight recorder: what this rank did lately in one group, its last 256 calls. It answers
//! where this rank is, finds calls that wait for long, and is written to a file when the group
//! fails.

use crate::{
    DType, Error, ReduceOp, Result,
    communicator::{Call, Fingerprint},
    rendezvous::wire::Place,
};
use serde::{Deserialize, Serialize};
use std::{
    collections::VecDeque,
    io::Write,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant, SystemTime},
};

/// Calls that are remembered.
const KEPT: usize = 256;
/// A call that has waited this long is asked about, then again after twice the time, and so on.
const PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(30);
/// Interval between inquiries in a process that was asked to stop.
const URGENT_PATIENCE: Duration = Duration::from_millis(200);

/// Sender and receiver of a message, as ranks of the group.
pub(super) type Ends = (usize, usize);

#[derive(Debug)]
struct Entry {
    call: Call,
    /// Set for a message, whose number is not that of a collective.
    message: Option<Ends>,
    at: SystemTime,
    begun: Instant,
    took: Option<Duration>,
    error: Option<String>,
    /// When to ask next where the others are.
    ask_after: Duration,
    /// Time of the last inquiry.
    asked: Instant,
}

/// The calls of one group on this rank.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<VecDeque<Entry>>);

/// One call in a [`FlightRecord`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedCall {
    /// Number of the call within its group, from 1.
    pub seq: u64,
    /// Its name, such as `all_reduce`.
    pub operation: String,
    /// Type of the elements.
    pub dtype: DType,
    /// How many elements.
    pub count: u64,
    /// How values become one, where they do.
    pub reduce: Option<ReduceOp>,
    /// The rank that gives or gets, where there is one.
    pub root: Option<u32>,
    /// A message between two ranks; `seq` counts those from one rank to another.
    #[serde(default)]
    pub direct: bool,
    /// When the rank made the call, in microseconds since 1970.
    pub begun_us: u64,
    /// How long it took, in microseconds; none if it had not returned.
    pub took_us: Option<u64>,
    /// Why it failed; none if it did not.
    pub error: Option<String>,
}

/// What one rank leaves behind when its group fails: the content of `flight-rank<R>.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// World rank of the writer.
    pub rank: usize,
    /// World ranks of the group.
    pub members: Vec<usize>,
    /// Number of the group, 0 for that of all ranks.
    pub group: u64,
    /// Name of the machine.
    pub host: String,
    /// The writer's process on it.
    pub pid: u32,
    /// When this was written, in microseconds since 1970.
    pub written_us: u64,
    /// The first cause, as this rank was told.
    pub error: String,
    /// Oldest first.
    pub calls: Vec<RecordedCall>,
}

impl RecordedCall {
    /// The part that must be the same on all ranks.
    pub(super) fn fingerprint(&self) -> Fingerprint {
        Fingerprint {
            seq: self.seq,
            operation: self.operation.clone(),
            dtype: self.dtype,
            count: self.count,
            reduce: self.reduce,
            root: self.root,
        }
    }
}

impl FlightRecord {
    /// Writes itself into `folder`, which is made if it does not exist, and returns the file.
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

impl Log {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, call: &Call, message: Option<Ends>) {
        let mut entries = self.lock();
        if entries.len() == KEPT {
            entries.pop_front();
        }
        let begun = Instant::now();
        entries.push_back(Entry {
            call: call.clone(),
            message,
            at: SystemTime::now(),
            begun,
            took: None,
            error: None,
            ask_after: PATIENCE,
            asked: begun,
        });
    }

    pub fn leave(&self, error: Option<&Error>) {
        if let Some(entry) = self.lock().back_mut() {
            entry.took = Some(entry.begun.elapsed());
            entry.error = error.map(Error::to_string);
        }
    }

    /// Whether this rank is in a call right now.
    pub fn inside(&self) -> bool {
        self.lock().back().is_some_and(|entry| entry.took.is_none())
    }

    /// Where this rank is, seen from the collective `seq`, if its last one is `counter`.
    pub fn place(&self, seq: Option<u64>, counter: u64) -> Place {
        let entries = self.lock();
        let asked = entries.iter().rev().find(|entry| entry.message.is_none() && Some(entry.call.seq) == seq);
        let last = entries.back();
        Place {
            asked: asked.map(|entry| entry.call.fingerprint()),
            seq: counter,
            last: last.map(|entry| entry.call.fingerprint()),
            inside: last.is_some_and(|entry| entry.took.is_none()),
            closed: false,
        }
    }

    /// The call in progress, with the ends of a message.
    pub fn pending(&self) -> Option<(Call, Option<Ends>)> {
        let entries = self.lock();
        let entry = entries.back().filter(|entry| entry.took.is_none())?;
        Some((entry.call.clone(), entry.message))
    }

    /// The call in progress, the ends of a message and the time waited, whenever an inquiry is due.
    pub fn stalled(&self, urgent: bool) -> Option<(Call, Option<Ends>, Duration)> {
        let mut entries = self.lock();
        let entry = entries.back_mut().filter(|entry| entry.took.is_none())?;
        let waited = entry.begun.elapsed();
        if waited >= entry.ask_after {
            entry.ask_after = waited + entry.ask_after.min(MOST_PATIENCE);
        } else if !urgent || entry.asked.elapsed() < URGENT_PATIENCE {
            return None;
        }
        entry.asked = Instant::now();
        Some((entry.call.clone(), entry.message, waited))
    }

    pub fn calls(&self) -> Vec<RecordedCall> {
        let recorded = |entry: &Entry| {
            let Fingerprint { seq, operation, dtype, count, reduce, root } = entry.call.fingerprint();
            RecordedCall {
                seq,
                operation,
                dtype,
                count,
                reduce,
                root,
                direct: entry.message.is_some(),
                begun_us: microseconds(entry.at),
                took_us: entry.took.map(|took| took.as_micros() as u64),
                error: entry.error.clone(),
            }
        };
        self.lock().iter().map(recorded).collect()
    }
}
