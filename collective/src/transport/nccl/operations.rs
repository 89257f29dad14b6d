//! The collectives of a [`NcclCommunicator`]: what each takes, in NCCL's own types.

use super::{
    NcclCommunicator,
    api::{IN_PROGRESS, RawStream, SUCCESS},
};
use crate::{DType, Error, ReduceOp, Result, communicator::Call};
use std::ffi::{c_int, c_void};

/// `ncclDataType_t`
fn dtype(dtype: DType) -> c_int {
    match dtype {
        DType::U8 => 1,
        DType::I32 => 2,
        DType::I64 => 4,
        DType::F16 => 6,
        DType::F32 => 7,
        DType::F64 => 8,
        DType::BF16 => 9,
    }
}

/// `ncclRedOp_t`
fn operation(call: &Call) -> Result<c_int> {
    match call.reduce {
        Some(ReduceOp::Sum) => Ok(0),
        Some(ReduceOp::Product) => Ok(1),
        Some(ReduceOp::Max) => Ok(2),
        Some(ReduceOp::Min) => Ok(3),
        Some(ReduceOp::Mean) => Ok(4),
        None => Err(Error::Invalid(format!("{call} does not say how to reduce"))),
    }
}

fn root(call: &Call) -> Result<c_int> {
    let root =
        call.root.ok_or_else(|| Error::Invalid(format!("{call} does not say which rank is the root")))?;
    Ok(root as c_int)
}

/// Each puts one collective on `stream`. Type, reduction and root are the call's; counts are in
/// elements.
///
/// # Safety
/// Of all of them: the pointers must be memory of the communicator's device, of `count` elements or
/// as many as said, and must stay until the stream is through with the work. `send` may be `recv`,
/// exactly.
#[allow(clippy::missing_safety_doc)]
impl NcclCommunicator {
    /// The reduction of all ranks' `send` in every rank's `recv`.
    pub unsafe fn all_reduce(
        &self,
        call: &Call,
        send: *const c_void,
        recv: *mut c_void,
        stream: RawStream,
    ) -> Result<()> {
        let (count, dtype, op) = (call.count, dtype(call.dtype), operation(call)?);
        // SAFETY: the caller's.
        self.call("all_reduce", call.timeout, |comm| unsafe {
            (self.library.api.all_reduce)(send, recv, count, dtype, op, comm, stream)
        })
    }

    /// The same in the root's `recv` only.
    pub unsafe fn reduce(
        &self,
        call: &Call,
        send: *const c_void,
        recv: *mut c_void,
        stream: RawStream,
    ) -> Result<()> {
        let (count, dtype, op, root) = (call.count, dtype(call.dtype), operation(call)?, root(call)?);
        // SAFETY: the caller's.
        self.call("reduce", call.timeout, |comm| unsafe {
            (self.library.api.reduce)(send, recv, count, dtype, op, root, comm, stream)
        })
    }

    /// The root's `send` in every rank's `recv`.
    pub unsafe fn broadcast(
        &self,
        call: &Call,
        send: *const c_void,
        recv: *mut c_void,
        stream: RawStream,
    ) -> Result<()> {
        let (count, dtype, root) = (call.count, dtype(call.dtype), root(call)?);
        // SAFETY: the caller's.
        self.call("broadcast", call.timeout, |comm| unsafe {
            (self.library.api.broadcast)(send, recv, count, dtype, root, comm, stream)
        })
    }

    /// Every rank's `send`, of the call's count, in `recv`, which has room for one of each rank.
    pub unsafe fn all_gather(
        &self,
        call: &Call,
        send: *const c_void,
        recv: *mut c_void,
        stream: RawStream,
    ) -> Result<()> {
        let (count, dtype) = (call.count, dtype(call.dtype));
        // SAFETY: the caller's.
        self.call("all_gather", call.timeout, |comm| unsafe {
            (self.library.api.all_gather)(send, recv, count, dtype, comm, stream)
        })
    }

    /// This rank's of as many equal parts as there are ranks of the reduction of all `send`, which
    /// are of the call's count; in `recv`, of one part.
    pub unsafe fn reduce_scatter(
        &self,
        call: &Call,
        send: *const c_void,
        recv: *mut c_void,
        stream: RawStream,
    ) -> Result<()> {
        let (count, dtype, op) = (call.count / self.world.size, dtype(call.dtype), operation(call)?);
        // SAFETY: the caller's.
        self.call("reduce_scatter", call.timeout, |comm| unsafe {
            (self.library.api.reduce_scatter)(send, recv, count, dtype, op, comm, stream)
        })
    }

    /// Exchanges `send` with rank `to` and `recv` with rank `from`, in one group, so that neither
    /// waits for the other; null for a direction that is not wanted.
    pub unsafe fn exchange(
        &self,
        call: &Call,
        (send, to): (*const c_void, usize),
        (recv, from): (*mut c_void, usize),
        stream: RawStream,
    ) -> Result<()> {
        let (api, count, dtype) = (&self.library.api, call.count, dtype(call.dtype));
        // SAFETY: the caller's. A group that was started is ended whatever happens in it.
        self.call("send and receive", call.timeout, |comm| unsafe {
            let begun = (api.group_start)();
            if begun != SUCCESS {
                return begun;
            }
            let fine = |code| code == SUCCESS || code == IN_PROGRESS;
            let mut code = SUCCESS;
            if !send.is_null() {
                code = (api.send)(send, count, dtype, to as c_int, comm, stream);
            }
            if !recv.is_null() && fine(code) {
                code = (api.recv)(recv, count, dtype, from as c_int, comm, stream);
            }
            let ended = (api.group_end)();
            if fine(code) { ended } else { code }
        })
    }
}
