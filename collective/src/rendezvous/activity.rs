//! A snapshot of what one rank is doing in all its groups.

use super::{
    Watched,
    callers::{Callers, Snapshot},
    wire::Activity,
};
use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

/// Collects a rank's activity. `counters` has the last calls of all its groups, dropped ones included.
pub(crate) fn gather(
    callers: &Callers,
    groups: &[Arc<dyn Watched>],
    counters: &HashMap<u64, Arc<AtomicU64>>,
) -> Activity {
    let Snapshot { waiting, transitions, keys } = callers.snapshot();
    if !waiting {
        return Activity { transitions, ..Activity::default() };
    }
    let activity = Activity {
        waiting,
        transitions,
        calls: groups.iter().filter_map(|group| group.pending()).collect(),
        keys,
        counters: counters.iter().map(|(group, last)| (*group, last.load(Ordering::SeqCst))).collect(),
        messages: groups.iter().flat_map(|group| group.messages()).collect(),
    };
    // Consistent only if no thread has begun or ended a wait in between.
    match callers.snapshot() {
        Snapshot { waiting: true, transitions: still, .. } if still == transitions => activity,
        Snapshot { transitions, .. } => Activity { transitions, ..Activity::default() },
    }
}
