//! A family of groups: a group and its duplicates, and the call in which this rank waits in one of them.

use super::group_state::GroupState;
use crate::rendezvous::wire::{GroupProgress, PendingCall};
use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
    thread::{self, ThreadId},
};

/// The groups of a family on this rank.
#[derive(Debug, Default)]
pub(super) struct Family(Mutex<FamilyState>);

#[derive(Debug, Default)]
struct FamilyState {
    groups: Vec<Weak<GroupState>>,
    /// The thread that waits in calls of these groups; `None` before the first call.
    thread: Option<ThreadId>,
    /// Whether several threads do. One may then call while another waits, so that no wait is conclusive.
    several_threads: bool,
}

impl Family {
    fn lock(&self) -> MutexGuard<'_, FamilyState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn add(&self, group: &Arc<GroupState>) {
        let mut state = self.lock();
        state.groups.retain(|group| group.strong_count() > 0);
        state.groups.push(Arc::downgrade(group));
    }

    /// Registers the current thread as one that waits in calls.
    pub fn enter(&self) {
        let mut state = self.lock();
        let current = thread::current().id();
        state.several_threads |= *state.thread.get_or_insert(current) != current;
    }

    /// The call in which this rank's thread waits, and the progress of each group.
    pub fn position(&self) -> (Option<PendingCall>, Vec<GroupProgress>) {
        let state = self.lock();
        let groups: Vec<_> = state.groups.iter().filter_map(Weak::upgrade).collect();
        let conclusive = !state.several_threads;
        drop(state);
        // The wait is read first: while it lasts, no call begins in another group.
        let waits = groups.iter().filter(|_| conclusive).find_map(|group| group.waits());
        (waits, groups.iter().map(|group| group.progress()).collect())
    }
}
