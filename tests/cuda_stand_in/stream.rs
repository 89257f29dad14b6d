//! Streams and events. Work is queued; one thread executes it, always the head of a stream that no
//! event holds back, chosen at random. The seed is `CUDA_STAND_IN_SEED`.

use crate::{
    CONTEXT, INVALID_VALUE, LAUNCH_FAILED, NOT_READY, SUCCESS, Status, kernel, memory,
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

/// Called with its argument until it returns 1; work that another library puts on a stream.
pub type Poll = unsafe extern "C" fn(*mut c_void) -> c_int;

pub enum Operation {
    Launch(kernel::Launch),
    Copy { to: usize, from: usize, length: usize },
    Write { to: usize, bytes: Vec<u8> },
    Free(usize),
    /// One part of an event's record, of which a context's event has several.
    Record { event: usize, number: u64 },
    Wait { event: usize, number: u64 },
    External { poll: Poll, argument: usize },
}

#[derive(Default)]
struct Stream {
    context: usize,
    queue: VecDeque<Operation>,
    busy: bool,
}

#[derive(Default)]
struct Event {
    /// Of the last record that was asked for.
    number: u64,
    /// Parts that are not executed yet, of each record that has some. Recording again does not change
    /// what earlier waits wait for.
    open: BTreeMap<u64, usize>,
    /// Modelled time on the device when it was executed, seconds.
    time: f64,
}

#[derive(Default)]
struct State {
    streams: BTreeMap<usize, Stream>,
    events: HashMap<usize, Event>,
    next: usize,
    executor: bool,
    random: u64,
    time: f64,
    executed: u64,
    /// What every call returns since the device was lost.
    lost: Option<Status>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);
static CHANGED: Condvar = Condvar::new();

thread_local! {
    /// The context of the calling thread.
    pub static CURRENT: Cell<usize> = const { Cell::new(CONTEXT) };
}

impl State {
    fn draw(&mut self, below: usize) -> usize {
        // xorshift64 (Marsaglia 2003)
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random % below as u64) as usize
    }

    fn is_done(&self, event: usize, number: u64) -> bool {
        self.events.get(&event).is_none_or(|event| !event.open.contains_key(&number))
    }

    fn is_idle(&self, stream: usize) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.queue.is_empty() && !stream.busy)
    }

    fn new_handle(&mut self) -> usize {
        self.next += 16;
        self.next
    }

    /// Takes the next operation of a random stream that can go on.
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

fn with<R>(act: impl FnOnce(&mut State) -> R) -> R {
    let mut guard = state();
    let result = guard.as_mut().map(act);
    drop(guard);
    CHANGED.notify_all();
    result.expect("the state is there")
}

/// Waits until `done`, or the device is lost.
fn wait_until(done: impl Fn(&State) -> bool) -> Status {
    let mut guard = state();
    loop {
        match guard.as_ref() {
            Some(State { lost: Some(status), .. }) => return *status,
            Some(state) if done(state) => return SUCCESS,
            _ => guard = CHANGED.wait(guard).unwrap_or_else(PoisonError::into_inner),
        }
    }
}

/// The device.
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
        let mut cost = 0.0;
        let mut again = false;
        match &mut operation {
            Operation::Launch(launch) => cost = launch.run(),
            // SAFETY: both were checked when the copy was asked for.
            Operation::Copy { to, from, length } => unsafe {
                std::ptr::copy(*from as *const u8, *to as *mut u8, *length);
            },
            // SAFETY: likewise.
            Operation::Write { to, bytes } => unsafe {
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), *to as *mut u8, bytes.len());
            },
            Operation::Free(address) => memory::free_now(*address),
            Operation::Record { .. } | Operation::Wait { .. } => {}
            // SAFETY: whoever gave them keeps them until it is done.
            Operation::External { poll, argument } => again = unsafe { poll(*argument as *mut c_void) } == 0,
        }
        with(|state| {
            state.time += cost;
            let time = state.time;
            if let Operation::Record { event, number } = operation
                && let Some(event) = state.events.get_mut(&event)
                && let Some(parts) = event.open.get_mut(&number)
            {
                *parts -= 1;
                if *parts == 0 {
                    event.open.remove(&number);
                }
                event.time = time;
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
    with(|state| {
        if let Some(status) = state.lost {
            return status;
        }
        let context = CURRENT.get();
        let queue = state.streams.entry(stream).or_insert_with(|| Stream { context, ..Stream::default() });
        queue.queue.push_back(operation);
        SUCCESS
    })
}

pub fn synchronize(stream: usize) -> Status {
    wait_until(|state| state.is_idle(stream))
}

pub fn synchronize_all() -> Status {
    wait_until(|state| state.streams.keys().all(|stream| state.is_idle(*stream)))
}

/// Puts work of another library on a stream: `poll` is called on the device's thread until it returns 1.
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
    unsafe { *stream = handle };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut usize, flags: u32, _priority: c_int) -> Status {
    unsafe { cuStreamCreate(stream, flags) }
}

/// Work that is queued is still executed.
#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(_stream: usize) -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(stream: usize) -> Status {
    count("synchronisations");
    synchronize(stream)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> Status {
    count("synchronisations");
    let context = CURRENT.get();
    wait_until(|state| {
        state.streams.iter().all(|(handle, stream)| stream.context != context || state.is_idle(*handle))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: u32) -> Status {
    let handle = with(|state| {
        let handle = state.new_handle();
        state.events.insert(handle, Event::default());
        handle
    });
    unsafe { *event = handle };
    SUCCESS
}

/// Waits that are queued see it as executed: the driver keeps it for them, too.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    with(|state| match state.events.get(&event) {
        // Not yet executed: it stays, so that whoever waits does.
        Some(found) if !found.open.is_empty() => SUCCESS,
        Some(_) => {
            state.events.remove(&event);
            SUCCESS
        }
        None => INVALID_VALUE,
    })
}

/// Records an event in some streams at once.
fn record(event: usize, streams: impl Fn(&State) -> Vec<usize>) -> Status {
    with(|state| {
        let (streams, time) = (streams(state), state.time);
        let Some(found) = state.events.get_mut(&event) else { return INVALID_VALUE };
        (found.number, found.time) = (found.number + 1, time);
        let number = found.number;
        if !streams.is_empty() {
            found.open.insert(number, streams.len());
        }
        for stream in streams {
            state.streams.entry(stream).or_default().queue.push_back(Operation::Record { event, number });
        }
        state.lost.unwrap_or(SUCCESS)
    })
}

fn wait(what: &str, event: usize, streams: impl Fn(&State) -> Vec<usize>) -> Status {
    if std::env::var("CUDA_STAND_IN_IGNORE_WAITS").is_ok_and(|ignored| ignored == what) {
        return SUCCESS;
    }
    with(|state| {
        let Some(number) = state.events.get(&event).map(|event| event.number) else { return INVALID_VALUE };
        for stream in streams(state) {
            state.streams.entry(stream).or_default().queue.push_back(Operation::Wait { event, number });
        }
        state.lost.unwrap_or(SUCCESS)
    })
}

fn of_context(context: usize) -> impl Fn(&State) -> Vec<usize> {
    move |state| {
        let own = state.streams.iter().filter(|(_, stream)| stream.context == context);
        own.map(|(handle, _)| *handle).collect()
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, stream: usize) -> Status {
    record(event, |_| vec![stream])
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxRecordEvent(context: usize, event: usize) -> Status {
    record(event, of_context(context))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) -> Status {
    wait("stream", event, |_| vec![stream])
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxWaitEvent(context: usize, event: usize) -> Status {
    wait("context", event, of_context(context))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> Status {
    with(|state| match state.events.get(&event) {
        _ if state.lost.is_some() => state.lost.unwrap_or(SUCCESS),
        Some(found) if found.open.contains_key(&found.number) => NOT_READY,
        Some(_) => SUCCESS,
        None => INVALID_VALUE,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Status {
    count("synchronisations");
    let number = with(|state| state.events.get(&event).map_or(0, |event| event.number));
    wait_until(|state| state.is_done(event, number))
}

/// Modelled time, so that tuning chooses the same kernels in every run.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: usize, to: usize) -> Status {
    let times = with(|state| [from, to].map(|event| state.events.get(&event).map_or(0.0, |event| event.time)));
    unsafe { *milliseconds = ((times[1] - times[0]) * 1e3) as f32 };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) -> Status {
    unsafe { cuEventElapsedTime_v2(milliseconds, from, to) }
}
