//! Counts the kernels that are independent of collectives.
//!
//! The host launches them after the work for which a collective waits, and before the device is made to wait for the
//! collective.

use crate::settings::{add, lock};
use std::{collections::HashMap, sync::Mutex};

#[derive(Default)]
struct Overlap {
    launches: u64,
    /// Number of launches before the last record of each event, and its stream; `None` for a context's event.
    events: HashMap<usize, (u64, Option<usize>)>,
    /// Number of launches before the event for which each stream was last made to wait.
    behind: HashMap<usize, u64>,
    /// The same for the first collective on each stream for which the context does not wait.
    collectives: HashMap<usize, u64>,
}

static OVERLAP: Mutex<Option<Overlap>> = Mutex::new(None);

fn with(act: impl FnOnce(&mut Overlap)) {
    act(lock(&OVERLAP).get_or_insert_default());
}

pub fn launched() {
    with(|overlap| overlap.launches += 1);
}

pub fn recorded(event: usize, stream: Option<usize>) {
    with(|overlap| _ = overlap.events.insert(event, (overlap.launches, stream)));
}

pub fn stream_waits(stream: usize, event: usize) {
    with(|overlap| {
        if let Some((launches, _)) = overlap.events.get(&event) {
            overlap.behind.insert(stream, *launches);
        }
    });
}

/// Registers a collective that is enqueued on a stream.
pub fn collective(stream: usize) {
    with(|overlap| {
        let behind = overlap.behind.get(&stream).copied().unwrap_or(overlap.launches);
        overlap.collectives.entry(stream).or_insert(behind);
    });
}

pub fn context_waits(event: usize) {
    with(|overlap| {
        let Some((_, Some(stream))) = overlap.events.get(&event) else { return };
        if let Some(behind) = overlap.collectives.remove(stream) {
            add("launches independent of collectives", overlap.launches - behind);
        }
    });
}
