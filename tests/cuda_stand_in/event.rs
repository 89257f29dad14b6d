//! Events of streams and contexts. Times are available only while kernel sources are collected.

use crate::{
    INVALID_HANDLE, INVALID_VALUE, NOT_READY, NOT_SUPPORTED, SUCCESS, Status,
    context::current,
    overlap,
    settings::{collects_sources, count, setting},
    stream::{Event, Operation, State, UNUSED, count_wait, existing, wait_until, with},
};
use std::{
    env,
    hash::{DefaultHasher, Hash, Hasher},
};

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut usize, _flags: u32) -> Status {
    let context = or_return!(current("cuEventCreate"));
    let handle = with(|state| {
        let handle = state.new_handle();
        state.events.insert(handle, Event { context, ..Event::default() });
        handle
    });
    unsafe { *event = handle };
    SUCCESS
}

/// Queued waits treat it as executed, as with the driver.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> Status {
    with(|state| match state.events.get(&event) {
        // Not executed yet: it stays for the operations that wait for it.
        Some(found) if !found.open.is_empty() => SUCCESS,
        Some(_) => {
            state.events.remove(&event);
            SUCCESS
        }
        None => INVALID_VALUE,
    })
}

/// Records an event in several streams of a context at once.
fn record(event: usize, context: usize, streams: impl Fn(&State) -> Vec<usize>) -> Status {
    with(|state| {
        let (streams, queued) = (streams(state), state.queued);
        let Some(found) = state.events.get_mut(&event) else { return INVALID_VALUE };
        if found.context != context {
            eprintln!("CUDA stand-in: an event is recorded in another context than its own");
            return INVALID_HANDLE;
        }
        (found.number, found.queued) = (found.number + 1, queued);
        found.anchor = UNUSED.get().filter(|unused| streams == [*unused]);
        let number = found.number;
        if !streams.is_empty() {
            found.open.insert(number, streams.len());
        }
        for stream in streams {
            state.enqueue(stream, Operation::Record { event, number });
        }
        state.lost.unwrap_or(SUCCESS)
    })
}

fn wait(what: &str, event: usize, streams: impl Fn(&State) -> Vec<usize>) -> Status {
    if env::var("CUDA_STAND_IN_IGNORE_WAITS").is_ok_and(|ignored| ignored == what) {
        return SUCCESS;
    }
    with(|state| {
        let Some(number) = state.events.get(&event).map(|event| event.number) else { return INVALID_VALUE };
        for stream in streams(state) {
            state.enqueue(stream, Operation::Wait { event, number });
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
    let (stream, context) = or_return!(existing(stream));
    overlap::recorded(event, Some(stream));
    record(event, context, |_| vec![stream])
}

#[cfg_attr(not(cuda_12_0), unsafe(no_mangle))]
pub extern "C" fn cuCtxRecordEvent(context: usize, event: usize) -> Status {
    if setting("NO_CONTEXT_EVENTS").is_some() {
        return NOT_SUPPORTED;
    }
    overlap::recorded(event, None);
    record(event, context, of_context(context))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(stream: usize, event: usize, _flags: u32) -> Status {
    let (stream, _) = or_return!(existing(stream));
    overlap::stream_waits(stream, event);
    wait("stream", event, |_| vec![stream])
}

#[cfg_attr(not(cuda_12_0), unsafe(no_mangle))]
pub extern "C" fn cuCtxWaitEvent(context: usize, event: usize) -> Status {
    overlap::context_waits(event);
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

/// Whether kernels are timed.
fn measures_time() -> bool {
    collects_sources() || env::var_os("CUDA_STAND_IN_TIMES").is_some()
}

/// Device time is not available, unless it is set.
///
/// CubeCL measures it with an event in a stream that it creates for that purpose; waiting for such an event fails.
/// CubeCL then selects the first kernel of each kind instead of the fastest, which makes runs reproducible.
#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> Status {
    let (number, anchor, queued) = with(|state| {
        let found = state.events.get(&event).map(|event| (event.number, event.anchor, event.queued));
        found.unwrap_or((0, None, 0))
    });
    let measures = anchor.filter(|anchor| UNUSED.get() == Some(*anchor) && !measures_time());
    if measures.is_some() {
        return NOT_SUPPORTED;
    }
    count_wait(queued);
    wait_until(|state| state.is_done(event, number))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(milliseconds: *mut f32, from: usize, to: usize) -> Status {
    unsafe { cuEventElapsedTime_v2(milliseconds, from, to) }
}

/// While sources are collected, each time is shorter than the previous one, so that CubeCL tries all kernels.
///
/// CubeCL skips the rest of a group if some of its kernels are not faster.
#[cfg_attr(not(cuda_12_0), unsafe(no_mangle))]
pub unsafe extern "C" fn cuEventElapsedTime_v2(milliseconds: *mut f32, from: usize, to: usize) -> Status {
    let time = match (setting("TIMES"), env::var_os("CUDA_STAND_IN_TIMES")) {
        (Some(time), _) => (time * launches_between(from, to)) as f32,
        (None, Some(_)) => random_time(),
        (None, None) if collects_sources() => 1e4 * 0.97_f32.powi((count("times") % 600) as i32),
        (None, None) => return NOT_SUPPORTED,
    };
    unsafe { *milliseconds = time };
    SUCCESS
}

/// Number of operations that were queued between the records of two events.
fn launches_between(from: usize, to: usize) -> u64 {
    let queued = |event| with(|state| state.events.get(&event).map_or(0, |event| event.queued));
    queued(to).saturating_sub(queued(from))
}

/// A time that differs from rank to rank, so that ranks choose different kernels.
fn random_time() -> f32 {
    let rank: u64 = env::var("RANK").ok().and_then(|rank| rank.parse().ok()).unwrap_or(0);
    let mut hasher = DefaultHasher::new();
    (setting("SEED"), rank, count("times")).hash(&mut hasher);
    1.0 + (hasher.finish() % 1000) as f32
}
