//! Control plane of ranks that are threads of one process, without a network: the counterpart of the server.

use super::{
    Arbiter, PEER_LOSS_GRACE, Watched, abort_all,
    diagnosis::{contradiction, timeout},
    store::{HashStore, Store},
    wire::{Place, Stall},
};
use crate::{
    Error, Result,
    transport::thread::{ThreadCommunicator, ThreadGroup},
};
use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    fmt,
    sync::{
        Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

/// Interval at which waiting calls are checked.
const TICK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct JobState {
    cause: Option<Error>,
    left: BTreeSet<usize>,
    groups: Vec<(usize, Weak<dyn Watched>)>,
    /// Number of the last call, by rank and group.
    counters: HashMap<(usize, u64), Arc<AtomicU64>>,
    /// Communicators of groups that not all members have opened yet.
    unclaimed: HashMap<u64, Vec<Option<ThreadCommunicator>>>,
}

/// State that the ranks of one process share.
#[derive(Default)]
struct LocalJob {
    state: Mutex<JobState>,
    changed: Condvar,
    store: HashStore,
}

/// One rank's handle. Dropping it announces a clean exit.
pub(crate) struct LocalMember {
    job: Arc<LocalJob>,
    rank: usize,
}

impl fmt::Debug for LocalMember {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LocalMember(rank {})", self.rank)
    }
}

/// Creates the handles of `world` ranks.
pub(crate) fn open(world: usize) -> Result<Vec<LocalMember>> {
    let job = Arc::<LocalJob>::default();
    let watching = Arc::downgrade(&job);
    thread::Builder::new()
        .name("ddp-in-process".into())
        .spawn(move || {
            while let Some(job) = watching.upgrade() {
                job.check_stalls();
                drop(job);
                thread::sleep(TICK);
            }
        })
        .map_err(|e| Error::io("start the thread that watches the ranks", &e))?;
    Ok((0..world).map(|rank| LocalMember { job: job.clone(), rank }).collect())
}

impl LocalJob {
    fn lock(&self) -> MutexGuard<'_, JobState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> Vec<(usize, Arc<dyn Watched>)> {
        let state = self.lock();
        let alive = |(rank, group): &(usize, Weak<dyn Watched>)| Some((*rank, group.upgrade()?));
        state.groups.iter().filter_map(alive).collect()
    }

    fn check_stalls(&self) {
        for (rank, group) in self.groups() {
            if let Some(stall) = group.stalled() {
                self.judge(rank, &stall);
            }
        }
    }

    fn judge(&self, asker: usize, stall: &Stall) {
        let mut cause = self.contradiction(asker, stall);
        if cause.is_some() {
            cause = self.contradiction(asker, stall).filter(|again| cause.as_ref() == Some(again));
        }
        if stall.expired {
            cause = cause.or_else(|| Some(timeout(stall, &self.places(stall))));
        }
        if let Some(error) = cause {
            self.poison(error);
        }
    }

    fn places(&self, stall: &Stall) -> HashMap<usize, Place> {
        let groups = self.groups();
        let here = groups.iter().filter(|(_, group)| group.id() == stall.group);
        here.map(|(rank, group)| (*rank, group.place(stall.call.seq, stall.message))).collect()
    }

    fn contradiction(&self, asker: usize, stall: &Stall) -> Option<Error> {
        let state = self.lock();
        let (counters, gone) = (state.counters.clone(), state.left.clone());
        drop(state);
        // Read after the counters: a group with a counter that is missing here was dropped.
        let places = self.places(stall);
        let left = |rank| {
            let last = counters.get(&(rank, stall.group)).map(|counter| counter.load(Ordering::Relaxed));
            let dropped = stall.message.is_none() && last.is_some() && !places.contains_key(&rank);
            let behind = stall.message.is_some() || last.unwrap_or(0) < stall.call.seq;
            behind && (dropped || gone.contains(&rank))
        };
        contradiction(asker, stall, left, &places)
    }

    fn poison(&self, error: Error) {
        let mut state = self.lock();
        let first = state.cause.is_none();
        let cause = state.cause.get_or_insert(error).clone();
        drop(state);
        self.changed.notify_all();
        self.store.wake();
        if first {
            abort_all(self.groups().iter().map(|(_, group)| group), &cause);
        }
    }
}

impl LocalMember {
    /// This rank's communicator in a group. The first rank creates those of all ranks.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the rank is in use or the group cannot be created.
    pub fn communicator(&self, group: u64, rank: usize, size: usize) -> Result<ThreadCommunicator> {
        let mut state = self.job.lock();
        let taken = || Error::Invalid(format!("rank {rank} of {size} is already in use in this group"));
        let communicators = match state.unclaimed.entry(group) {
            Entry::Occupied(room) => room.into_mut(),
            Entry::Vacant(room) => room.insert(ThreadGroup::create(size)?.into_iter().map(Some).collect()),
        };
        let mine = communicators.get_mut(rank).and_then(Option::take).ok_or_else(taken)?;
        if communicators.iter().all(Option::is_none) {
            state.unclaimed.remove(&group);
        }
        Ok(mine)
    }
}

impl Store for LocalMember {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.cause().map_or_else(|| self.job.store.set(key, value), Err)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.cause().map_or_else(|| self.job.store.try_get(key), Err)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.job.store.delete(key)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        self.job.store.get_unless(key, timeout, || self.cause())
    }
}

impl Arbiter for LocalMember {
    fn cause(&self) -> Option<Error> {
        self.job.lock().cause.clone()
    }

    fn fail(&self, error: Error) -> Error {
        let error = match error {
            Error::PeerLost { rank, reason } if rank != self.rank => {
                // If the lost rank has not left, its own report explains the failure better.
                let heard = Instant::now();
                let mut state = self.job.lock();
                while state.cause.is_none()
                    && !state.left.contains(&rank)
                    && heard.elapsed() < PEER_LOSS_GRACE
                {
                    let left = PEER_LOSS_GRACE.saturating_sub(heard.elapsed());
                    state =
                        self.job.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                let reason = if state.left.contains(&rank) { super::finished(&reason) } else { reason };
                Error::PeerLost { rank, reason }
            }
            other => other,
        };
        self.job.poison(error.clone());
        self.cause().unwrap_or(error)
    }

    fn expire(&self, stall: Stall, error: Error) -> Error {
        self.job.judge(self.rank, &stall);
        self.cause().unwrap_or(error)
    }

    fn watch(&self, group: &Arc<dyn Watched>) {
        let mut state = self.job.lock();
        state.groups.retain(|(_, group)| group.strong_count() > 0);
        state.groups.push((self.rank, Arc::downgrade(group)));
        state.counters.insert((self.rank, group.id()), group.counter());
    }

    fn group_closed(&self) {
        if self.job.groups().iter().all(|(rank, group)| *rank != self.rank || group.closed()) {
            self.goodbye();
        }
    }

    fn goodbye(&self) {
        self.job.lock().left.insert(self.rank);
        self.job.changed.notify_all();
    }
}

impl Drop for LocalMember {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail(Error::PeerLost { rank: self.rank, reason: "it panicked".into() });
        }
        self.goodbye();
    }
}
