//! Streams, executed by one thread in random order.
//!
//! The thread executes the head of a random stream that no event blocks. The seed is `CUDA_STAND_IN_SEED`.

use crate::{
    CONTEXT, LAUNCH_FAILED, SUCCESS, Status, fault, kernel, memory,
    overlap,
    settings::{count, lock, setting},
};
use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::{c_int, c_void},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::Duration,
};

/// Work that another library enqueues, called with its argument until it returns 1.
pub type Poll = unsafe extern "C" fn(*mut c_void) -> c_int;

pub enum Operation {
    Nothing,
    Launch(kernel::Launch),
    Copy { to: usize, from: usize, length: usize },
    Write { to: usize, bytes: Vec<u8> },
    Free(usize),
    /// One part of an event's record. The record of a context's event has a part for each stream.
    Record { event: usize, number: u64 },
    Wait { event: usize, number: u64 },
    External { poll: Poll, argument: usize },
}

#[derive(Default)]
pub struct Stream {
    pub context: usize,
    pub queue: VecDeque<Operation>,
    busy: bool,
}

#[derive(Default)]
pub struct Event {
    /// Number of the last requested record.
    pub number: u64,
    /// Parts that are not executed, by record. Earlier waits refer to their own record.
    pub open: BTreeMap<u64, usize>,
    /// Number of operations that had been queued at the last record.
    pub queued: u64,
    /// The stream in which it is recorded, if this thread has just created and not used it.
    pub anchor: Option<usize>,
}

#[derive(Default)]
pub struct State {
    pub streams: BTreeMap<usize, Stream>,
    pub events: HashMap<usize, Event>,
    next: usize,
    executor: bool,
    random: u64,
    /// Number of operations that were ever queued.
    pub queued: u64,
    /// Number of these for which the host has waited.
    waited: u64,
    executed: u64,
    /// Status of every call after the device is lost.
    pub lost: Option<Status>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The context of the calling thread.
    pub static CURRENT: Cell<usize> = const { Cell::new(CONTEXT) };
    /// The stream that the calling thread created last, until the thread uses a stream.
    pub static UNUSED: Cell<Option<usize>> = const { Cell::new(None) };
}

impl State {
    fn draw(&mut self, below: usize) -> usize {
        // xorshift64 (Marsaglia 2003)
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    pub fn is_done(&self, event: usize, number: u64) -> bool {
        self.events.get(&event).is_none_or(|event| !event.open.contains_key(&number))
    }

    fn is_idle(&self, stream: usize) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.queue.is_empty() && !stream.busy)
    }

    pub fn new_handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Takes the next operation of a random stream that is not blocked.
    fn take(&mut self) -> Option<(usize, Operation)> {
        let can = |stream: &Stream| match stream.queue.front() {
            Some(Operation::Wait { event, number }) => self.is_done(*event, *number),
            Some(_) => !stream.busy,
            None => false,
        };
        let ready: Vec<usize> =
            self.streams.iter().filter(|(_, stream)| can(stream)).map(|(handle, _)| *handle).collect();
        if ready.is_empty() {
            return None;
        }
        let chosen = ready[self.draw(ready.len())];
        let stream = self.streams.get_mut(&chosen)?;
        let operation = stream.queue.pop_front()?;
        stream.busy = true;
        Some((chosen, operation))
    }
}

/// The state, with the executing thread started.
fn state() -> MutexGuard<'static, Option<State>> {
    let mut guard = lock(&STATE);
    let state = guard.get_or_insert_with(|| {
        let seed = setting("SEED").unwrap_or(1);
        State { next: 0x5000, random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, ..State::default() }
    });
    if !state.executor {
        state.executor = true;
        thread::spawn(execute);
    }
    guard
}

pub fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = state();
    let result = guard.as_mut().map(act);
    drop(guard);
    CHANGED.notify_all();
    result.expect("the state is there")
}

/// Waits until `done` returns true or the device is lost.
pub fn wait_until(done: impl Fn(&State) -> bool) -> Status {
    let mut guard = state();
    loop {
        match guard.as_ref() {
            Some(State { lost: Some(status), .. }) => return *status,
            Some(state) if done(state) => {
                // The executor makes the memory inaccessible shortly after the last operation.
                if state.streams.values().all(|stream| !stream.busy) {
                    memory::open(false);
                }
                return SUCCESS;
            }
            _ => guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Marks the device as lost.
pub fn lose() {
    with(|state| state.lost = Some(LAUNCH_FAILED));
}

/// Body of the executing thread.
fn execute() {
    let lost_at = setting("LOST_AT");
    loop {
        let mut guard = lock(&STATE);
        let (stream, mut operation) = loop {
            if let Some(found) = guard.as_mut().and_then(State::take) {
                break found;
            }
            memory::open(false);
            guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner);
        };
        drop(guard);
        memory::open(true);
        let mut again = false;
        match &mut operation {
            Operation::Launch(launch) => launch.run(),
            // SAFETY: both were checked when the copy was enqueued.
            Operation::Copy { to, from, length } => unsafe {
                fault::doing("a copy");
                std::ptr::copy(*from as *const u8, *to as *mut u8, *length);
            },
            // SAFETY: as above.
            Operation::Write { to, bytes } => unsafe {
                fault::doing("an upload");
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), *to as *mut u8, bytes.len());
            },
            Operation::Free(address) => memory::free_now(*address),
            Operation::Nothing | Operation::Record { .. } | Operation::Wait { .. } => {}
            // SAFETY: the caller keeps both valid until the work has completed.
            Operation::External { poll, argument } => again = unsafe { poll(*argument as *mut c_void) } == 0,
        }
        with(|state| {
            if let Operation::Record { event, number } = operation
                && let Some(event) = state.events.get_mut(&event)
                && let Some(parts) = event.open.get_mut(&number)
            {
                *parts -= 1;
                if *parts == 0 {
                    event.open.remove(&number);
                }
            }
            if let Some(stream) = state.streams.get_mut(&stream) {
                stream.busy = false;
                if again {
                    stream.queue.push_front(operation);
                }
            }
            state.executed += u64::from(!again);
            if lost_at == Some(state.executed) {
                state.lost = Some(LAUNCH_FAILED);
            }
        });
        if again {
            thread::sleep(Duration::from_micros(50));
        }
    }
}

pub fn push(stream: usize, operation: Operation) -> Status {
    UNUSED.set(None);
    match &operation {
        Operation::Launch(_) => overlap::launched(),
        Operation::External { .. } => overlap::collective(stream),
        _ => {}
    }
    with(|state| {
        if let Some(status) = state.lost {
            return status;
        }
        let context = CURRENT.get();
        let work = matches!(operation, Operation::Launch(_) | Operation::External { .. });
        state.queued += u64::from(work);
        let queue = state.streams.entry(stream).or_insert_with(|| Stream { context, ..Stream::default() });
        queue.queue.push_back(operation);
        SUCCESS
    })
}

pub fn synchronize(stream: usize) -> Status {
    count("drains");
    wait_until(|state| state.is_idle(stream))
}

pub fn synchronize_all() -> Status {
    wait_until(|state| state.streams.keys().all(|stream| state.is_idle(*stream)))
}

/// Enqueues another library's work: the device's thread calls `poll` until it returns 1.
#[unsafe(no_mangle)]
pub extern "C" fn cudaStandInPush(stream: usize, poll: Poll, argument: usize) -> c_int {
    push(stream, Operation::External { poll, argument })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: u32) -> Status {
    let handle = with(|state| {
        let handle = state.new_handle();
        state.streams.insert(handle, Stream { context: CURRENT.get(), ..Stream::default() });
        handle
    });
    UNUSED.set(Some(handle));
    unsafe { *stream = handle };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, _priority: c_int) -> Status {
    unsafe { cuStreamCreate(stream, flags) }
}

/// Queued work is still executed.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_stream: usize) -> Status {
    SUCCESS
}

/// Counts a wait for the first `queued` operations, unless it is one of CubeCL's repeated waits without work.
pub fn count_wait(queued: u64) {
    let (new, drains) = with(|state| {
        let new = queued > state.waited;
        state.waited = state.waited.max(queued);
        (new, queued == state.queued)
    });
    if new {
        count("synchronisations");
    }
    if new && drains {
        count("drains");
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    count_wait(with(|state| state.queued));
    synchronize(stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    count_wait(with(|state| state.queued));
    let context = CURRENT.get();
    wait_until(|state| {
        state.streams.iter().all(|(handle, stream)| stream.context != context || state.is_idle(*handle))
    })
}
