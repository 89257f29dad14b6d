//! Several machines with several ranks each: large reductions are made inside each machine first,
//! so that only one buffer a machine travels, whatever the number of ranks on it.
//!
//! The order is fixed: within a machine by rank, then by machine. Half types are widened to f32
//! first and rounded once, at the end.

use super::tcp::Tcp;
use crate::{
    DType, Error, ReduceOp, Result,
    communicator::{Call, Communicator, World},
    reduce,
};
use std::time::Instant;

/// Up to this many bytes the plain way has fewer steps.
const SMALL: usize = 32 << 10;

/// Ranks of a group, by machine.
#[derive(Debug)]
pub(crate) struct Machines {
    /// All ranks, for everything but large reductions.
    flat: Tcp,
    /// The ranks of this machine, as ranks of the group, and their transport.
    here: Vec<usize>,
    local: Box<dyn Communicator>,
    /// The first rank of every machine, as ranks of the group; their transport, if this is one.
    first: Vec<usize>,
    leaders: Option<Tcp>,
}

impl Machines {
    pub fn new(
        flat: Tcp,
        here: Vec<usize>,
        local: Box<dyn Communicator>,
        first: Vec<usize>,
        leaders: Option<Tcp>,
    ) -> Self {
        Machines { flat, here, local, first, leaders }
    }

    fn reduce_by_machine(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let begun = Instant::now();
        // All steps together have the time of one call.
        let step =
            |root| Call { root, timeout: call.timeout.saturating_sub(begun.elapsed()), ..call.clone() };
        let inside = |error| ranks_from(error, &self.here);
        self.local.reduce(&step(Some(0)), buffer).map_err(inside)?;
        if let Some(leaders) = &self.leaders {
            leaders.all_reduce(&step(None), buffer).map_err(|error| ranks_from(error, &self.first))?;
        }
        self.local.broadcast(&step(Some(0)), buffer).map_err(inside)
    }
}

/// An error of a part of the group, in ranks of the group.
fn ranks_from(error: Error, ranks: &[usize]) -> Error {
    let outer = |rank: usize| ranks.get(rank).copied().unwrap_or(rank);
    match error {
        Error::PeerLost { rank, reason } => Error::PeerLost { rank: outer(rank), reason },
        Error::Mismatch { rank_a, call_a, rank_b, call_b } => {
            Error::Mismatch { rank_a: outer(rank_a), call_a, rank_b: outer(rank_b), call_b }
        }
        other => other,
    }
}

/// How elements travel: their type on the way, and a name that keeps calls of different types apart.
fn on_the_way(dtype: DType) -> (DType, &'static str) {
    match dtype {
        DType::F16 => (DType::F32, "all_reduce:f16"),
        DType::BF16 => (DType::F32, "all_reduce:bf16"),
        other => (other, "all_reduce"),
    }
}

impl Communicator for Machines {
    fn world(&self) -> World {
        self.flat.world()
    }

    fn name(&self) -> &'static str {
        if self.local.name() == "tcp" { "tcp" } else { "shm+tcp" }
    }

    fn all_reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        let Some(op) = call.reduce else { return self.flat.all_reduce(call, buffer) };
        let (dtype, operation) = on_the_way(call.dtype);
        // The mean of integers is exact in a partial that is no element type.
        let whole = matches!(call.dtype, DType::I32 | DType::I64 | DType::U8);
        if buffer.len() <= SMALL || (whole && op == ReduceOp::Mean) {
            return self.flat.all_reduce(call, buffer);
        }
        let sum = if op == ReduceOp::Mean { ReduceOp::Sum } else { op };
        let inner = Call { dtype, operation, reduce: Some(sum), ..call.clone() };
        if dtype == call.dtype && op == sum {
            return self.reduce_by_machine(&inner, buffer);
        }
        let mut partial = vec![0; call.count * reduce::partial_size(call.dtype, op)];
        reduce::widen(call.dtype, op, buffer, &mut partial);
        self.reduce_by_machine(&inner, &mut partial)?;
        reduce::narrow(call.dtype, op, self.world().size, &partial, buffer);
        Ok(())
    }

    fn broadcast(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.flat.broadcast(call, buffer)
    }

    fn all_gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        self.flat.all_gather(call, mine, out)
    }

    fn barrier(&self, call: &Call) -> Result<()> {
        self.flat.barrier(call)
    }

    fn reduce(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.flat.reduce(call, buffer)
    }

    fn reduce_scatter(&self, call: &Call, buffer: &mut [u8]) -> Result<()> {
        self.flat.reduce_scatter(call, buffer)
    }

    fn gather(&self, call: &Call, mine: &[u8], out: &mut [u8]) -> Result<()> {
        self.flat.gather(call, mine, out)
    }

    fn scatter(&self, call: &Call, all: &[u8], mine: &mut [u8]) -> Result<()> {
        self.flat.scatter(call, all, mine)
    }

    fn send(&self, call: &Call, to: usize, data: &[u8]) -> Result<()> {
        self.flat.send(call, to, data)
    }

    fn recv(&self, call: &Call, from: usize, data: &mut [u8]) -> Result<()> {
        self.flat.recv(call, from, data)
    }

    fn abort(&self) {
        self.flat.abort();
        self.local.abort();
        if let Some(leaders) = &self.leaders {
            leaders.abort();
        }
    }
}
