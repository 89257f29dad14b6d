//! The method of a communicator that a call entered, and the deadline of the call.
//!
//! A transport accesses a rank's memory according to the method, and a call's name is chosen by its caller.
//! The ranks therefore compare the method as well before they access each other's data.

use crate::{Error, Result, communicator::Call};
use std::{
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

impl Deref for MethodCall<'_> {
    type Target = Call;

    fn deref(&self) -> &Call {
        self.call
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
        Err(Error::timeout(&*self.call, waited, absent()))
    }
}
