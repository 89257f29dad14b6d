//! What this rank did lately in one group: the last 256 calls.

use crate::{communicator::Call, rendezvous::wire::Place};
use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

/// Calls that are remembered.
const KEPT: usize = 256;
/// A call that has waited this long is asked about, then again after twice the time, and so on.
const PATIENCE: Duration = Duration::from_millis(500);
const MOST_PATIENCE: Duration = Duration::from_secs(30);

#[derive(Debug)]
struct Record {
    call: Call,
    begun: Instant,
    finished: bool,
    /// When to ask next where the others are.
    ask_after: Duration,
}

/// The calls of one group on this rank.
#[derive(Debug, Default)]
pub(super) struct Log(Mutex<VecDeque<Record>>);

impl Log {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, call: &Call) {
        let mut records = self.lock();
        if records.len() == KEPT {
            records.pop_front();
        }
        let (begun, finished) = (Instant::now(), false);
        records.push_back(Record { call: call.clone(), begun, finished, ask_after: PATIENCE });
    }

    pub fn leave(&self) {
        if let Some(record) = self.lock().back_mut() {
            record.finished = true;
        }
    }

    /// Where this rank is, seen from call `seq`.
    pub fn place(&self, seq: u64) -> Place {
        let records = self.lock();
        let asked = records.iter().rev().find(|record| record.call.seq == seq);
        let last = records.back();
        Place {
            asked: asked.map(|record| record.call.fingerprint()),
            last: last.map(|record| record.call.fingerprint()),
            inside: last.is_some_and(|record| !record.finished),
        }
    }

    /// The call that waits, and for how long, each time it is due to be asked about.
    pub fn stalled(&self) -> Option<(Call, Duration)> {
        let mut records = self.lock();
        let record = records.back_mut().filter(|record| !record.finished)?;
        let waited = record.begun.elapsed();
        if waited < record.ask_after {
            return None;
        }
        record.ask_after = waited + record.ask_after.min(MOST_PATIENCE);
        Some((record.call.clone(), waited))
    }
}
