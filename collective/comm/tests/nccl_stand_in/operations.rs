//! Functions of the NCCL stand-in that enqueue work.

use super::{INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Operation, Queued, SUCCESS, borrow, device};
use crate::settings::{note, pending, setting};
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

/// Elements above which `slow_large_call` delays a call.
const LARGE: usize = 1_000_000;

unsafe fn put(comm: *mut c_void, stream: usize, operation: Operation) -> c_int {
    let comm = unsafe { borrow(comm) };
    if let Some(ms) = setting("slow_large_call", comm.rank).filter(|_| operation.count > LARGE) {
        thread::sleep(Duration::from_millis(ms));
    }
    note(format!("{} {}", operation.name, comm.rank));
    let number = comm.calls.fetch_add(1, SeqCst) + 1;
    if setting("block_at", comm.rank) == Some(number) {
        comm.hang();
        return INTERNAL_ERROR;
    }
    if setting("meet", comm.rank).is_some_and(|calls| number <= calls)
        && !comm.meet(&format!("call-{number}"))
    {
        return INTERNAL_ERROR;
    }
    if device::of_stream(stream) != comm.device {
        eprintln!("NCCL stand-in: rank {} calls on a stream of another device than its own", comm.rank);
        return INVALID_ARGUMENT;
    }
    if comm.state.load(SeqCst) != SUCCESS {
        return INVALID_USAGE;
    }
    if let Some(push) = device::push() {
        pending(stream, 1);
        return device::stage(push, comm, stream, operation);
    }
    let queue = comm.queue.lock().unwrap();
    let Some(queue) = queue.as_ref() else { return INVALID_USAGE };
    pending(stream, 1);
    match queue.send(Queued { stream, operation, done: None }) {
        Ok(()) => SUCCESS,
        Err(_) => INTERNAL_ERROR,
    }
}

macro_rules! operation {
    ($symbol:ident, $name:literal, ($($arg:ident: $ty:ty),*), $send:expr, $recv:expr, $count:expr, $dtype:expr, $op:expr, $root:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $ty,)* comm: *mut c_void, stream: *mut c_void) -> c_int {
            let operation = Operation {
                name: $name, send: $send as usize, recv: $recv as usize, count: $count, dtype: $dtype, op: $op, root: $root,
            };
            unsafe { put(comm, stream as usize, operation) }
        }
    };
}
type In = *const c_void;
type Out = *mut c_void;
operation!(ncclAllReduce, "AllReduce", (s: In, r: Out, count: usize, dtype: c_int, op: c_int), s, r, count, dtype, op, -1);
operation!(ncclReduce, "Reduce", (s: In, r: Out, count: usize, dtype: c_int, op: c_int, root: c_int), s, r, count, dtype, op, root);
operation!(ncclBroadcast, "Broadcast", (s: In, r: Out, count: usize, dtype: c_int, root: c_int), s, r, count, dtype, -1, root);
operation!(ncclAllGather, "AllGather", (s: In, r: Out, count: usize, dtype: c_int), s, r, count, dtype, -1, -1);
operation!(ncclReduceScatter, "ReduceScatter", (s: In, r: Out, count: usize, dtype: c_int, op: c_int), s, r, count, dtype, op, -1);
