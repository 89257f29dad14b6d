//! Large all-reduces of groups over several machines with several ranks on some of them.
//!
//! They are done within each machine first, so that only one buffer per machine crosses the network. An element is
//! reduced in rank order within each machine, then in the order of the machines. Half types are widened to f32
//! first and rounded once, at the end.

use crate::{
    DType, Error, ReduceOp, Result,
    communicator::{Call, Communicator},
    reduce::{Reduction, reduce_partials},
};
use std::time::Instant;

/// Up to this many bytes, TCP between all ranks takes fewer steps.
const SMALL: usize = 32 << 10;

/// Ranks of a group, by machine.
#[derive(Debug)]
pub(crate) struct Machines {
    /// The ranks of this machine, as ranks of the group.
    pub here: Vec<usize>,
    /// The transport between them.
    pub local: Box<dyn Communicator>,
    /// The first rank of every machine, as ranks of the group.
    pub first: Vec<usize>,
    /// The transport between them, on each of them.
    pub leaders: Option<Box<dyn Communicator>>,
}

impl Machines {
    /// Whether an all-reduce is done by machine.
    pub fn suit(&self, call: &Call, bytes: usize) -> bool {
        // An exact mean of integers needs a partial that is not an element type.
        let whole = matches!(call.dtype, DType::I32 | DType::I64 | DType::U8);
        bytes > SMALL && !(whole && call.reduce == Some(ReduceOp::Mean))
    }

    /// All-reduces `buffer` of the group.
    pub fn all_reduce(&self, call: &Call, reduction: Reduction, buffer: &mut [u8]) -> Result<()> {
        let (dtype, operation) = partial_type(call.dtype);
        let sum = if reduction.op == ReduceOp::Mean { ReduceOp::Sum } else { reduction.op };
        let inner = Call { dtype, operation: operation.into(), reduce: Some(sum), ..call.clone() };
        if dtype == call.dtype && reduction.op == sum {
            return self.reduce_by_machine(&inner, buffer);
        }
        let act = |partials: &mut [u8]| self.reduce_by_machine(&inner, partials);
        reduce_partials(reduction, buffer, act)
    }

    pub fn abort(&self) {
        self.local.abort();
        if let Some(leaders) = &self.leaders {
            leaders.abort();
        }
    }

    fn reduce_by_machine(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let begun = Instant::now();
        // All steps together have the time limit of one call.
        let step =
            |root| Call { root, timeout: call.timeout.saturating_sub(begun.elapsed()), ..call.clone() };
        // A part's ranks are translated to those of the group.
        let outer =
            |ranks: &[usize], error: Error| error.with_ranks(|rank| ranks.get(rank).copied().unwrap_or(rank));
        let inside = |error| outer(&self.here, error);
        self.local.reduce(&step(Some(0)), buffer).map_err(inside)?;
        if let Some(leaders) = &self.leaders {
            leaders.all_reduce(&step(None), buffer).map_err(|error| outer(&self.first, error))?;
        }
        self.local.broadcast(&step(Some(0)), buffer).map_err(inside)
    }
}

/// The type in which elements are reduced, and a name that distinguishes calls of different element types.
fn partial_type(dtype: DType) -> (DType, &'static str) {
    match dtype {
        DType::F16 => (DType::F32, "all_reduce:f16"),
        DType::BF16 => (DType::F32, "all_reduce:bf16"),
        other => (other, "all_reduce"),
    }
}
