//! The method of a communicator that a call entered, and the deadline of the call.
//!
//! A transport accesses a rank's memory according to the method, and a call's name is chosen by its caller.
//! The ranks therefore compare the method as well before they access each other's data.

use crate::{Error, Result, communicator::Call};
use std::{
    fmt,
    ops::Deref,
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

/// A method of [`Communicator`](crate::Communicator).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    AllReduce,
    Reduce,
    ReduceScatter,
    Broadcast,
    AllGather,
    Gather,
    Scatter,
    /// `send` on one rank and `recv` on the other.
    Message,
    Barrier,
}

variants! { Method: AllReduce = "all_reduce", Reduce = "reduce", ReduceScatter = "reduce_scatter",
    Broadcast = "broadcast", AllGather = "all_gather", Gather = "gather", Scatter = "scatter",
    Message = "send or recv", Barrier = "barrier"
}

impl Method {
    /// Combines `call` with this method.
    pub fn of(self, call: &Call) -> MethodCall<'_> {
        MethodCall { method: self, call }
    }
}

/// A call with its method: what all ranks must agree on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MethodCall<'a> {
    pub method: Method,
    call: &'a Call,
}

impl MethodCall<'_> {
    /// The side of rank `rank`, which makes this call, in a mismatch.
    pub fn side(self, rank: usize) -> Side {
        (rank, self.to_string(), Some(self.method))
    }
}

impl Deref for MethodCall<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        self.call
    }
}

impl fmt::Display for MethodCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.call.fmt(f)
    }
}

/// Time limit and abort flag of a call.
#[derive(Clone, Copy)]
pub(crate) struct Deadline<'a> {
    pub call: MethodCall<'a>,
    pub begun: Instant,
    pub aborted: &'a AtomicBool,
}

impl<'a> Deadline<'a> {
    /// That of a call that begins now.
    pub fn new(call: MethodCall<'a>, aborted: &'a AtomicBool) -> Self {
        Deadline { call, begun: Instant::now(), aborted }
    }

    /// Fails once the deadline has passed or the group was aborted. `absent` describes what is missing.
    ///
    /// # Errors
    /// [`Error::Aborted`] or [`Error::Timeout`].
    pub fn check(&self, absent: impl Fn() -> String) -> Result<()> {
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::Aborted);
        }
        let waited = self.begun.elapsed();
        if waited < self.call.timeout {
            return Ok(());
        }
        Err(Error::timeout(self.call, waited, absent()))
    }
}

/// One side of a mismatch: rank, call, and method if known.
pub(crate) type Side = (usize, String, Option<Method>);

/// The error for two ranks with different calls. Methods are named if nothing else differs.
pub(crate) fn mismatch((rank_a, call_a, a): Side, (rank_b, call_b, b): Side) -> Error {
    let same = call_a == call_b;
    let side = |call: String, method: Option<Method>| match method.filter(|_| same) {
        Some(method) => format!("{call} through {}", method.name()),
        None => call,
    };
    Error::Mismatch { rank_a, call_a: side(call_a, a), rank_b, call_b: side(call_b, b) }
}
