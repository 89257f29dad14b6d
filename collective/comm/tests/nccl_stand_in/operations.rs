//! Functions of the NCCL stand-in that enqueue work, alone or in a group.

use super::{Batch, INTERNAL_ERROR, INVALID_ARGUMENT, INVALID_USAGE, Operation, SUCCESS, borrow, device};
use crate::settings::{note, pending, setting};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::Ordering::SeqCst;
use std::thread;
use std::time::Duration;

/// Elements above which `slow_large_call` delays a call.
const LARGE: usize = 1_000_000;

type Waiting = (*mut c_void, usize, Operation);

thread_local! {
    static GROUP: RefCell<Option<Vec<Waiting>>> = const { RefCell::new(None) };
}

#[unsafe(no_mangle)]
pub extern "C" fn ncclGroupStart() -> c_int {
    GROUP.with(|group| group.borrow_mut().get_or_insert_default().clear());
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGroupEnd() -> c_int {
    let Some(waiting) = GROUP.with(|group| group.borrow_mut().take()) else { return INVALID_USAGE };
    let Some((comm, stream, _)) = waiting.first().cloned() else { return SUCCESS };
    let operations = waiting.into_iter().map(|(_, _, operation)| operation).collect();
    unsafe { put(comm, stream, operations) }
}

unsafe fn put(comm: *mut c_void, stream: usize, operations: Vec<Operation>) -> c_int {
    let comm = unsafe { borrow(comm) };
    let large = operations.iter().any(|operation| operation.count > LARGE);
    if let Some(ms) = setting("slow_large_call", comm.rank).filter(|_| large) {
        thread::sleep(Duration::from_millis(ms));
    }
    let names: Vec<_> = operations.iter().map(|operation| operation.name).collect();
    note(format!("{} {}", names.join("+"), comm.rank));
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
        return device::stage(push, comm, stream, operations);
    }
    let queue = comm.queue.lock().unwrap();
    let Some(queue) = queue.as_ref() else { return INVALID_USAGE };
    pending(stream, 1);
    match queue.send(Batch { stream, operations, done: None }) {
        Ok(()) => SUCCESS,
        Err(_) => INTERNAL_ERROR,
    }
}

unsafe fn begin(comm: *mut c_void, stream: *mut c_void, operation: Operation) -> c_int {
    let stream = stream as usize;
    let grouped = GROUP.with(|group| match &mut *group.borrow_mut() {
        Some(waiting) => {
            waiting.push((comm, stream, operation.clone()));
            true
        }
        None => false,
    });
    if grouped { SUCCESS } else { unsafe { put(comm, stream, vec![operation]) } }
}

macro_rules! operation {
    ($symbol:ident, $name:literal, ($($arg:ident: $ty:ty),*), $send:expr, $recv:expr, $count:expr, $dtype:expr, $op:expr, $root:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $symbol($($arg: $ty,)* comm: *mut c_void, stream: *mut c_void) -> c_int {
            let operation = Operation {
                name: $name, send: $send as usize, recv: $recv as usize, count: $count, dtype: $dtype, op: $op, root: $root,
            };
            unsafe { begin(comm, stream, operation) }
        }
    };
}
type In = *const c_void;
type Out = *mut c_void;
const NULL: Out = std::ptr::null_mut();
operation!(ncclAllReduce, "AllReduce", (s: In, r: Out, count: usize, dtype: c_int, op: c_int), s, r, count, dtype, op, -1);
operation!(ncclReduce, "Reduce", (s: In, r: Out, count: usize, dtype: c_int, op: c_int, root: c_int), s, r, count, dtype, op, root);
operation!(ncclBroadcast, "Broadcast", (s: In, r: Out, count: usize, dtype: c_int, root: c_int), s, r, count, dtype, -1, root);
operation!(ncclAllGather, "AllGather", (s: In, r: Out, count: usize, dtype: c_int), s, r, count, dtype, -1, -1);
operation!(ncclReduceScatter, "ReduceScatter", (s: In, r: Out, count: usize, dtype: c_int, op: c_int), s, r, count, dtype, op, -1);
operation!(ncclSend, "Send", (s: In, count: usize, dtype: c_int, peer: c_int), s, NULL, count, dtype, -1, peer);
operation!(ncclRecv, "Recv", (r: Out, count: usize, dtype: c_int, peer: c_int), NULL, r, count, dtype, -1, peer);
