//! Streams, executed by one thread in random order.
//!
//! The thread executes the head of a random stream that no event blocks. The seed is `CUDA_STAND_IN_SEED`.

use crate::{
    INVALID_HANDLE, LAUNCH_FAILED, SUCCESS, Status,
    context::{self, current},
    executor, kernel, overlap,
    settings::{count, lock, setting},
};
use std::{
    cell::Cell,
    collections::{BTreeMap, HashMap, VecDeque},
    ffi::{c_int, c_void},
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
};

/// Work that another library enqueues, called with its argument until it returns 1.
pub type Poll = unsafe extern "C" fn(*mut c_void) -> c_int;

pub enum Operation {
    Nothing,
    Launch(kernel::Launch),
    Copy {
        to: usize,
        from: usize,
        length: usize,
    },
    Write {
        to: usize,
        bytes: Vec<u8>,
    },
    Free(usize),
    /// One part of an event's record. The record of a context's event has a part for each stream.
    Record {
        event: usize,
        number: u64,
    },
    Wait {
        event: usize,
        number: u64,
    },
    External {
        poll: Poll,
        argument: usize,
    },
}

#[derive(Default)]
pub struct Stream {
    pub context: usize,
    pub queue: VecDeque<Operation>,
    busy: bool,
    destroyed: bool,
}

#[derive(Default)]
pub struct Event {
    /// Number of the last requested record.
    pub number: u64,
    /// Parts that are not executed, by record. Earlier waits refer to their own record.
    pub open: BTreeMap<u64, usize>,
    /// The context in which it was created.
    pub context: usize,
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
/// Notified of new operations.
static QUEUED: Condvar = Condvar::new();
/// Notified of completed operations, and of the loss of the device.
static COMPLETED: Condvar = Condvar::new();

thread_local! {
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

    /// Removes a destroyed stream without work.
    fn sweep(&mut self, stream: usize) {
        if self.is_idle(stream) && self.streams.get(&stream).is_some_and(|stream| stream.destroyed) {
            self.streams.remove(&stream);
        }
    }

    /// Whether a context has no work.
    fn is_context_idle(&self, context: usize) -> bool {
        self.streams.iter().all(|(handle, stream)| stream.context != context || self.is_idle(*handle))
    }

    /// Appends an operation to a stream.
    pub fn enqueue(&mut self, stream: usize, operation: Operation) {
        self.streams.entry(stream).or_default().queue.push_back(operation);
        QUEUED.notify_one();
    }

    pub fn new_handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Takes the next operation of a random stream that is not blocked.
    fn take(&mut self) -> Option<(usize, Operation)> {
        // All streams of a context may wait for one event.
        let mut last = ((0, 0), true);
        let mut can = |stream: &Stream| match stream.queue.front() {
            Some(Operation::Wait { event, number }) => {
                if last.0 != (*event, *number) {
                    last = ((*event, *number), self.is_done(*event, *number));
                }
                last.1
            }
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
        thread::spawn(executor::execute);
    }
    guard
}

pub fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = state();
    act(guard.as_mut().expect("the state is there"))
}

/// Waits until `done` returns true or the device is lost.
pub fn wait_until(done: impl Fn(&State) -> bool) -> Status {
    let mut guard = state();
    loop {
        match guard.as_ref() {
            Some(State { lost: Some(status), .. }) => return *status,
            Some(state) if done(state) => return SUCCESS,
            _ => guard = COMPLETED.wait(guard).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// Marks the device as lost.
pub fn lose() {
    with(|state| state.lost = Some(LAUNCH_FAILED));
    COMPLETED.notify_all();
}

/// Waits for the next operation that the device can execute.
pub fn next() -> (usize, Operation) {
    let mut guard = lock(&STATE);
    loop {
        if let Some(found) = guard.as_mut().and_then(State::take) {
            return found;
        }
        guard = QUEUED.wait(guard).unwrap_or_else(PoisonError::into_inner);
    }
}

/// Completes an operation of a stream, or returns it to the stream.
pub fn completed(stream: usize, operation: Operation, again: bool) {
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
        if let Some(found) = state.streams.get_mut(&stream) {
            found.busy = false;
            if again {
                found.queue.push_front(operation);
            }
        }
        state.sweep(stream);
        state.executed += u64::from(!again);
        if setting("LOST_AT") == Some(state.executed) {
            state.lost = Some(LAUNCH_FAILED);
        }
    });
    if !again {
        COMPLETED.notify_all();
    }
}

/// The stream of a handle, and its context. Handle 0 is the default stream of the calling thread's context.
pub fn existing(stream: usize) -> Result<(usize, usize), Status> {
    let default = if stream == 0 { Some(current("a call on the default stream")?) } else { None };
    with(|state| match (default, state.streams.get(&stream)) {
        (Some(context), _) => {
            state.streams.entry(context).or_insert_with(|| Stream { context, ..Stream::default() });
            Ok((context, context))
        }
        (None, Some(found)) if !found.destroyed => Ok((stream, found.context)),
        (None, _) => {
            eprintln!("CUDA stand-in: a call on the stream {stream:#x}, which does not exist");
            Err(INVALID_HANDLE)
        }
    })
}

pub fn push(stream: usize, operation: Operation) -> Status {
    UNUSED.set(None);
    let (stream, _) = or_return!(existing(stream));
    match &operation {
        Operation::Launch(_) => overlap::launched(),
        Operation::External { .. } => overlap::collective(stream),
        _ => {}
    }
    with(|state| {
        if let Some(status) = state.lost {
            return status;
        }
        let work = matches!(operation, Operation::Launch(_) | Operation::External { .. });
        state.queued += u64::from(work);
        state.enqueue(stream, operation);
        SUCCESS
    })
}

pub fn synchronize(stream: usize) -> Status {
    let (stream, _) = or_return!(existing(stream));
    count("drains");
    wait_until(|state| state.is_idle(stream))
}

/// Waits for all work of a context.
pub fn drain(context: usize) -> Status {
    wait_until(|state| state.is_context_idle(context))
}

/// Enqueues another library's work: the device's thread calls `poll` until it returns 1.
#[unsafe(no_mangle)]
pub extern "C" fn cudaStandInPush(stream: usize, poll: Poll, argument: usize) -> c_int {
    push(stream, Operation::External { poll, argument })
}

/// Device of a stream; -1 if there is no such stream.
#[unsafe(no_mangle)]
pub extern "C" fn cudaStandInStreamDevice(stream: usize) -> c_int {
    existing(stream).map_or(-1, |(_, context)| context::device(context))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut usize, _flags: u32) -> Status {
    let context = or_return!(current("cuStreamCreate"));
    let handle = with(|state| {
        let handle = state.new_handle();
        state.streams.insert(handle, Stream { context, ..Stream::default() });
        handle
    });
    UNUSED.set(Some(handle));
    unsafe { *stream = handle };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(
    stream: *mut usize,
    flags: u32,
    _priority: c_int,
) -> Status {
    unsafe { cuStreamCreate(stream, flags) }
}

/// Queued work is still executed.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(stream: usize) -> Status {
    let (stream, _) = or_return!(existing(stream));
    with(|state| {
        state.streams.entry(stream).and_modify(|stream| stream.destroyed = true);
        state.sweep(stream);
    });
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
    drain(or_return!(current("cuCtxSynchronize")))
}
