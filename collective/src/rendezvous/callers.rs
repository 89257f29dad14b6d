//! Tracks the threads of a rank that make collective calls, and whether all of them are waiting.
//!
//! A rank whose calling threads all wait cannot make another call until one of them returns. This
//! distinguishes a deadlock from a rank that computes. The answer is conservative: a thread counts as
//! computing whenever it is not inside one of the waits below.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
};

/// A thread that makes collective calls.
#[derive(Debug)]
struct Caller {
    /// Nesting depth of waits.
    waits: AtomicUsize,
    /// Outstanding jobs of a worker thread; always 1 for a user's thread.
    jobs: AtomicUsize,
}

impl Caller {
    fn new(jobs: usize) -> Arc<Self> {
        Arc::new(Caller { waits: AtomicUsize::new(0), jobs: AtomicUsize::new(jobs) })
    }

    fn computes(&self) -> bool {
        self.jobs.load(SeqCst) > 0 && self.waits.load(SeqCst) == 0
    }
}

/// The current thread and the ids of the ranks that it is registered with.
struct Current {
    caller: Arc<Caller>,
    ranks: Vec<u64>,
}

thread_local! {
    static CURRENT: RefCell<Current> = RefCell::new(Current { caller: Caller::new(1), ranks: Vec::new() });
}

/// The registered threads of one rank.
#[derive(Debug)]
pub(crate) struct Callers {
    /// Unique in this process, which may host several ranks.
    id: u64,
    threads: Mutex<Vec<Weak<Caller>>>,
    /// Incremented whenever a thread begins or ends a wait.
    transitions: AtomicU64,
    /// Store keys that threads wait for.
    keys: Mutex<Vec<String>>,
}

/// The state of a rank's threads at one moment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Snapshot {
    /// Whether all registered threads wait, and there is at least one.
    pub waiting: bool,
    /// Number of waits begun and ended so far.
    pub transitions: u64,
    /// Store keys that threads wait for.
    pub keys: Vec<String>,
}

/// Guard of a wait of the current thread.
pub(crate) struct Waiting<'a> {
    callers: &'a Callers,
    caller: Arc<Caller>,
    key: Option<&'a str>,
}

/// The registration of a worker thread.
#[derive(Clone, Debug)]
pub(crate) struct Worker(Arc<Caller>);

/// Guard of a worker thread's job, queued or in progress.
pub(crate) struct WorkerJob(Arc<Caller>);

impl Default for Callers {
    fn default() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Callers {
            id: NEXT.fetch_add(1, SeqCst),
            threads: Mutex::default(),
            transitions: AtomicU64::new(0),
            keys: Mutex::default(),
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Callers {
    fn register(&self, caller: &Arc<Caller>) {
        let mut threads = lock(&self.threads);
        threads.retain(|thread| thread.strong_count() > 0);
        threads.push(Arc::downgrade(caller));
    }

    /// The current thread, registered on its first call.
    fn current(&self) -> Arc<Caller> {
        let known = CURRENT.try_with(|current| {
            let mut current = current.borrow_mut();
            if !current.ranks.contains(&self.id) {
                current.ranks.push(self.id);
                self.register(&current.caller);
            }
            current.caller.clone()
        });
        // Fails only in a thread that is ending.
        known.unwrap_or_else(|_| Caller::new(1))
    }

    fn begin<'a>(&'a self, key: Option<&'a str>) -> Waiting<'a> {
        let caller = self.current();
        // Incremented before the state changes, here and in `drop`: a thread that waits in two snapshots
        // with equal numbers has waited all the time in between.
        self.transitions.fetch_add(1, SeqCst);
        caller.waits.fetch_add(1, SeqCst);
        Waiting { callers: self, caller, key }
    }

    /// Marks the current thread as waiting for other ranks or for another thread that does.
    pub fn wait(&self) -> Waiting<'_> {
        self.begin(None)
    }

    /// Marks the current thread as waiting for a store key.
    pub fn wait_for_key<'a>(&'a self, key: &'a str) -> Waiting<'a> {
        lock(&self.keys).push(key.to_string());
        self.begin(Some(key))
    }

    /// Registers a worker thread, which computes only while it has a job.
    pub fn worker(&self) -> Worker {
        let caller = Caller::new(0);
        self.register(&caller);
        Worker(caller)
    }

    /// The current state of this rank's threads.
    pub fn snapshot(&self) -> Snapshot {
        let transitions = self.transitions.load(SeqCst);
        let threads: Vec<_> = lock(&self.threads).iter().filter_map(Weak::upgrade).collect();
        let waiting = threads.iter().all(|thread| !thread.computes())
            && threads.iter().any(|thread| thread.waits.load(SeqCst) > 0);
        let keys = lock(&self.keys).clone();
        let still = self.transitions.load(SeqCst) == transitions;
        Snapshot { waiting: waiting && still, transitions, keys }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.callers.transitions.fetch_add(1, SeqCst);
        self.caller.waits.fetch_sub(1, SeqCst);
        if let Some(key) = self.key {
            let mut keys = lock(&self.callers.keys);
            if let Some(at) = keys.iter().position(|waited| waited == key) {
                keys.swap_remove(at);
            }
        }
    }
}

impl Worker {
    /// Makes the current thread this worker.
    pub fn adopt(&self, callers: &Callers) {
        let own = Current { caller: self.0.clone(), ranks: vec![callers.id] };
        // Fails only in a thread that is ending.
        let _ = CURRENT.try_with(|current| current.replace(own));
    }

    /// Counts a queued job until the guard is dropped.
    pub fn job(&self) -> WorkerJob {
        self.0.jobs.fetch_add(1, SeqCst);
        WorkerJob(self.0.clone())
    }
}

impl Drop for WorkerJob {
    fn drop(&mut self) {
        self.0.jobs.fetch_sub(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{sync::mpsc::channel, thread};

    #[test]
    fn a_rank_waits_if_all_of_its_calling_threads_wait() {
        let callers = Callers::default();
        assert!(!callers.snapshot().waiting, "no thread is registered");
        let wait = callers.wait();
        assert!(callers.snapshot().waiting);
        thread::scope(|scope| {
            let (go, gone) = channel::<()>();
            let (ready, is_ready) = channel();
            let callers = &callers;
            let other = scope.spawn(move || {
                drop(callers.wait());
                ready.send(()).unwrap();
                let _ = gone.recv();
            });
            is_ready.recv().unwrap();
            assert!(!callers.snapshot().waiting, "the other thread computes");
            drop(go);
            other.join().unwrap();
        });
        assert!(callers.snapshot().waiting, "the other thread has ended");
        let before = callers.snapshot().transitions;
        drop(wait);
        assert!(!callers.snapshot().waiting);
        assert!(callers.snapshot().transitions > before);
    }

    #[test]
    fn a_worker_without_a_job_does_not_compute() {
        let callers = Callers::default();
        let worker = callers.worker();
        let _wait = callers.wait();
        assert!(callers.snapshot().waiting);
        let job = worker.job();
        assert!(!callers.snapshot().waiting, "the job may make a call");
        thread::scope(|scope| {
            let (callers, worker) = (&callers, &worker);
            scope.spawn(move || {
                worker.adopt(callers);
                let _wait = callers.wait();
                assert!(callers.snapshot().waiting);
            });
        });
        drop(job);
        assert!(callers.snapshot().waiting);
    }

    #[test]
    fn awaited_keys_are_in_the_snapshot() {
        let callers = Callers::default();
        let wait = callers.wait_for_key("a");
        assert_eq!(callers.snapshot().keys, ["a"]);
        assert!(callers.snapshot().waiting);
        drop(wait);
        assert!(callers.snapshot().keys.is_empty());
    }
}
