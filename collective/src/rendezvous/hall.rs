//! The control plane of ranks that are threads of one process: the same decisions as the server's,
//! without a wire.

use super::{
    Arbiter, HEARSAY, Watched, abort_all, activity,
    callers::Callers,
    deadlock::{DEADLOCK_AFTER, deadlock, same_moment},
    store::{HashStore, Store},
    verdict::{contradiction, timeout},
    wait::{Callback, StopQuery},
    wire::{Activity, Stall},
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

/// How often calls that wait for long are looked for.
const TICK: Duration = Duration::from_millis(100);

#[derive(Default)]
struct State {
    cause: Option<Error>,
    left: BTreeSet<usize>,
    groups: Vec<(usize, Weak<dyn Watched>)>,
    /// Last calls, by rank and group.
    counters: HashMap<(usize, u64), Arc<AtomicU64>>,
    /// Communicators of groups that not all members have opened yet.
    rooms: HashMap<u64, Vec<Option<ThreadCommunicator>>>,
}

/// Where the ranks of one process meet.
#[derive(Default)]
struct Hall {
    state: Mutex<State>,
    changed: Condvar,
    /// The calling threads of each rank.
    callers: Vec<Arc<Callers>>,
    store: HashStore,
    /// Tells whether this process was asked to stop.
    stop: Option<StopQuery>,
}

/// One rank's place in the hall. Dropping it says goodbye.
pub(crate) struct Guest {
    hall: Arc<Hall>,
    rank: usize,
}

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guest(rank {})", self.rank)
    }
}

/// Places for `world` ranks.
pub(crate) fn open(world: usize, stop: Option<StopQuery>) -> Result<Vec<Guest>> {
    let callers = (0..world).map(|_| Arc::default()).collect();
    let hall = Arc::new(Hall { callers, stop, ..Hall::default() });
    let watching = Arc::downgrade(&hall);
    thread::Builder::new()
        .name("ddp-hall".into())
        .spawn(move || {
            while let Some(hall) = watching.upgrade() {
                hall.look_around();
                drop(hall);
                thread::sleep(TICK);
            }
        })
        .map_err(|e| Error::io("start the thread that watches the ranks", &e))?;
    Ok((0..world).map(|rank| Guest { hall: hall.clone(), rank }).collect())
}

impl Hall {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn groups(&self) -> Vec<(usize, Arc<dyn Watched>)> {
        let state = self.lock();
        let alive = |(rank, group): &(usize, Weak<dyn Watched>)| Some((*rank, group.upgrade()?));
        state.groups.iter().filter_map(alive).collect()
    }

    fn look_around(&self) {
        let urgent = self.stop.as_ref().is_some_and(|Callback(asked)| asked());
        for (rank, group) in self.groups() {
            if let Some(stall) = group.stalled(urgent) {
                self.judge(rank, &stall);
            }
        }
    }

    fn judge(&self, asker: usize, stall: &Stall) {
        let seq = (!stall.direct).then_some(stall.call.seq);
        let state = self.lock();
        let (counters, gone) = (state.counters.clone(), state.left.clone());
        drop(state);
        // Read after the counters: a group with a counter that is not among these was dropped.
        let groups = self.groups();
        let here = groups.iter().filter(|(_, group)| group.id() == stall.group);
        let places: HashMap<_, _> = here.map(|(rank, group)| (*rank, group.place(seq))).collect();
        let left = |rank| {
            let last = counters.get(&(rank, stall.group)).map(|counter| counter.load(Ordering::Relaxed));
            let dropped = !stall.direct && last.is_some() && !places.contains_key(&rank);
            let behind = stall.direct || last.unwrap_or(0) < stall.call.seq;
            behind && (dropped || gone.contains(&rank))
        };
        let mut verdict = contradiction(asker, stall, left, &places);
        if stall.expired || stall.urgent || stall.seconds >= DEADLOCK_AFTER.as_secs_f64() {
            verdict = verdict.or_else(|| self.deadlock());
        }
        if stall.expired {
            verdict = verdict.or_else(|| Some(timeout(stall, &places)));
        }
        if let Some(error) = verdict {
            self.poison(error);
        }
    }

    /// The mismatch of a deadlock, if two consecutive surveys show the same one.
    fn deadlock(&self) -> Option<Error> {
        let (first, second) = (self.activities(), self.activities());
        if !same_moment(&first, &second) {
            return None;
        }
        deadlock(&second, |key| matches!(self.store.try_get(key), Ok(Some(_))))
    }

    /// The activities of all ranks that have not left.
    fn activities(&self) -> HashMap<usize, Activity> {
        let groups = self.groups();
        let state = self.lock();
        let here = (0..self.callers.len()).filter(|rank| !state.left.contains(rank));
        here.map(|rank| {
            let own = groups.iter().filter(|(owner, _)| *owner == rank);
            let groups: Vec<_> = own.map(|(_, group)| group.clone()).collect();
            let counters = state.counters.iter().filter(|((owner, _), _)| *owner == rank);
            let counters = counters.map(|((_, group), last)| (*group, last.clone())).collect();
            (rank, activity::gather(&self.callers[rank], &groups, &counters))
        })
        .collect()
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

impl Guest {
    /// This rank's communicator in a group, made with all others by whoever comes first.
    pub fn communicator(&self, group: u64, rank: usize, size: usize) -> Result<ThreadCommunicator> {
        let mut state = self.hall.lock();
        let taken = || Error::Invalid(format!("rank {rank} of {size} is taken in this group"));
        let seats = match state.rooms.entry(group) {
            Entry::Occupied(room) => room.into_mut(),
            Entry::Vacant(room) => room.insert(ThreadGroup::create(size)?.into_iter().map(Some).collect()),
        };
        let mine = seats.get_mut(rank).and_then(Option::take).ok_or_else(taken)?;
        if seats.iter().all(Option::is_none) {
            state.rooms.remove(&group);
        }
        Ok(mine)
    }
}

impl Store for Guest {
    fn set(&self, key: &str, value: &[u8]) -> Result<()> {
        self.cause().map_or_else(|| self.hall.store.set(key, value), Err)
    }

    fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.cause().map_or_else(|| self.hall.store.try_get(key), Err)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.hall.store.delete(key)
    }

    fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let _waiting = self.callers().wait_for_key(key);
        self.hall.store.get_unless(key, timeout, || self.cause())
    }
}

impl Arbiter for Guest {
    fn cause(&self) -> Option<Error> {
        self.hall.lock().cause.clone()
    }

    fn fail(&self, error: Error) -> Error {
        let error = match error {
            Error::PeerLost { rank, reason } if rank != self.rank => {
                // What one hears of a rank that is still here, its own report explains better.
                let heard = Instant::now();
                let mut state = self.hall.lock();
                while state.cause.is_none() && !state.left.contains(&rank) && heard.elapsed() < HEARSAY {
                    let left = HEARSAY.saturating_sub(heard.elapsed());
                    state =
                        self.hall.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                let reason = if state.left.contains(&rank) { super::finished(&reason) } else { reason };
                Error::PeerLost { rank, reason }
            }
            other => other,
        };
        self.hall.poison(error.clone());
        self.cause().unwrap_or(error)
    }

    fn expire(&self, stall: Stall, error: Error) -> Error {
        self.hall.judge(self.rank, &stall);
        self.cause().unwrap_or(error)
    }

    fn watch(&self, group: &Arc<dyn Watched>) {
        let mut state = self.hall.lock();
        state.groups.retain(|(_, group)| group.strong_count() > 0);
        state.groups.push((self.rank, Arc::downgrade(group)));
        state.counters.insert((self.rank, group.id()), group.counter());
    }

    fn callers(&self) -> &Arc<Callers> {
        &self.hall.callers[self.rank]
    }

    fn group_closed(&self) {
        if self.hall.groups().iter().all(|(rank, group)| *rank != self.rank || group.closed()) {
            self.goodbye();
        }
    }

    fn goodbye(&self) {
        self.hall.lock().left.insert(self.rank);
        self.hall.changed.notify_all();
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if thread::panicking() {
            self.fail(Error::PeerLost { rank: self.rank, reason: "it panicked".into() });
        }
        self.goodbye();
    }
}
