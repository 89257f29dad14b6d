//! The collectives of a [`NcclCommunicator`], with NCCL's own types.

use super::{NcclCommunicator, api::RawStream};
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
    Ok(match call.reduction()? {
        ReduceOp::Sum => 0,
        ReduceOp::Product => 1,
        ReduceOp::Max => 2,
        ReduceOp::Min => 3,
        ReduceOp::Mean => 4,
    })
}

fn root(call: &Call) -> Result<c_int> {
    let root = call.root.ok_or_else(|| Error::Invalid(format!("{call} has no root rank")))?;
    Ok(root as c_int)
}

/// Defines methods that enqueue one collective on a stream. `$value`s are evaluated with the call in `$call`.
macro_rules! collectives {
    ($call:ident, $communicator:ident; $(
        $(#[$doc:meta])* $name:ident($($argument:ident = $value:expr),*) of $count:expr;
    )*) => {
        $(
            $(#[$doc])*
            ///
            /// # Errors
            /// Those of the type.
            pub unsafe fn $name(
                &self,
                $call: &Call,
                send: *const c_void,
                recv: *mut c_void,
                stream: RawStream,
            ) -> Result<()> {
                let $communicator = self;
                let (count, dtype) = ($count, dtype($call.dtype));
                $(let $argument = $value;)*
                // SAFETY: the caller's contract.
                $communicator.call(stringify!($name), |comm| unsafe {
                    ($communicator.library.api.$name)(send, recv, count, dtype, $($argument,)* comm, stream)
                })
            }
        )*
    };
}

/// Each method enqueues one collective on `stream`. Type, reduction and root are the call's; counts are in
/// elements.
///
/// # Errors
/// NCCL's own, [`Error::Aborted`], or [`Error::Invalid`] if the call lacks a reduction or root.
///
/// # Safety
/// For all of them: the pointers must be memory of the communicator's device, of `count` elements or as many
/// as documented, and must stay valid until the stream has finished the work. `send` may be equal to `recv`.
#[allow(clippy::missing_safety_doc)]
impl NcclCommunicator {
    collectives! { call, this;
        /// Writes the reduction of all ranks' `send` to every rank's `recv`.
        all_reduce(op = operation(call)?) of call.count;
        /// Writes the reduction of all ranks' `send` to the root's `recv`.
        reduce(op = operation(call)?, root = root(call)?) of call.count;
        /// Writes the root's `send` to every rank's `recv`.
        broadcast(root = root(call)?) of call.count;
        /// Writes every rank's `send`, of the call's count, in rank order to `recv`.
        all_gather() of call.count;
        /// Writes this rank's equal part of the reduction of all ranks' `send`, of the call's count, to `recv`.
        reduce_scatter(op = operation(call)?) of call.count / this.world.size;
    }
}
