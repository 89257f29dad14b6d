//! What a user holds: a group of ranks and the collectives on it.

mod collectives;
mod device;
pub(crate) mod explain;
mod group_state;
mod init;
mod inner;
mod log;
mod object;
mod options;
mod settings;
mod site;
mod split;
mod store;
mod turn;
mod work;

pub use device::{DeviceCall, DevicePath};
pub use explain::explain;
pub use log::{FlightRecord, RecordedCall};
pub use options::{JOB_ID, Options, RENDEZVOUS_TIMEOUT};
pub use work::Work;

use crate::{
    Error, Result, World,
    communicator::{Call, Communicator},
    rendezvous::Watched,
};
use inner::{Inner, Parts, Spec};
use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
};

/// A group of ranks that act together. Cloning is cheap and gives the same group.
///
/// Every rank must call the same collectives in the same order. If one does not, all get an error
/// that shows both sides; if one fails or is gone, all get that first cause, and so does every
/// later call. The last handle says goodbye when it is dropped.
pub struct ProcessGroup {
    inner: Arc<Inner>,
    /// This handle is used by who has the turn already.
    has_turn: bool,
}

impl Clone for ProcessGroup {
    fn clone(&self) -> Self {
        ProcessGroup { inner: self.inner.clone(), has_turn: false }
    }
}

impl fmt::Debug for ProcessGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProcessGroup(rank {} of {}, {})", self.rank(), self.world_size(), self.transport())
    }
}

impl ProcessGroup {
    fn new(parts: Parts) -> Self {
        ProcessGroup { inner: Arc::new(Inner::new(parts)), has_turn: false }
    }

    /// This rank's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.inner.core.world.rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.inner.core.world.size
    }

    /// Both.
    pub fn world(&self) -> World {
        self.inner.core.world
    }

    /// World rank of every rank of the group.
    pub fn members(&self) -> &[usize] {
        &self.inner.core.members
    }

    /// Name of the transport: `solo` or what `--transport` calls it.
    pub fn transport(&self) -> &'static str {
        self.inner.core.comm.name()
    }

    /// Why this group can make no more calls, if it failed.
    pub fn failure(&self) -> Option<Error> {
        self.inner.cause()
    }

    /// Destroys the group on this rank once the calls in progress have returned.
    ///
    /// Later calls fail, also on clones. Destroying the group of all ranks, or the last open group,
    /// leaves the job; destroying a group made by [`split`](ProcessGroup::split) does not affect other
    /// groups. Dropping all handles has the same effect.
    pub fn destroy(self) {
        // An error means that this thread is inside a call of the group, which then fails.
        let turn = {
            let _waiting = self.inner.waiting();
            self.inner.turns.take()
        };
        self.inner.core.destroyed.store(true, Ordering::Release);
        self.detach();
        match &self.inner.arbiter {
            Some(arbiter) if self.inner.core.group == init::WORLD => arbiter.goodbye(),
            Some(arbiter) => arbiter.group_closed(),
            None => {}
        }
        drop(turn);
    }

    /// Tells all ranks that this one cannot go on, and why: their collectives fail with `reason`.
    pub fn abort(&self, reason: impl Into<String>) {
        let rank = self.inner.core.members[self.inner.core.world.rank];
        let error = Error::PeerLost { rank, reason: reason.into() };
        let cause = self.inner.arbiter.as_ref().map_or(error.clone(), |arbiter| arbiter.fail(error));
        self.inner.core.abort();
        self.inner.core.record(&cause);
        self.inner.end(cause);
    }

    /// Runs several calls without another thread's calls in between.
    fn in_turn<R>(&self, act: impl FnOnce(&ProcessGroup) -> Result<R>) -> Result<R> {
        if self.has_turn {
            return act(self);
        }
        let _turn = {
            let _waiting = self.inner.waiting();
            self.inner.turns.take()?
        };
        act(&ProcessGroup { inner: self.inner.clone(), has_turn: true })
    }

    fn run<R>(&self, spec: Spec, act: impl FnOnce(&dyn Communicator, &Call) -> Result<R>) -> Result<R> {
        self.in_turn(|group| group.inner.run(spec, act))
    }
}
