//! A group of ranks and the collectives on it.

mod address_exchange;
mod collectives;
mod config;
mod device;
pub(crate) mod explain;
mod flight_recorder;
mod group_state;
mod init;
mod object;
mod options;
mod place;
mod settings;
mod shared_group;
mod ticket_queue;
mod topology;
mod work;

pub use device::DevicePath;
pub use explain::explain;
pub use flight_recorder::{FlightRecord, RecordedCall};
pub use options::{JOB_ID, Options, RENDEZVOUS_TIMEOUT};
pub use place::Place;
pub use work::Work;

use crate::{
    Error, Result, Store, World,
    rendezvous::{GroupProbe, control::Control},
};
use group_state::GroupState;
use shared_group::SharedGroup;
use std::sync::{Arc, atomic::Ordering};
use topology::{Ranks, Topology};

/// A group of ranks; clones are handles to the same group.
///
/// Every rank must call the same collectives in the same order. If one does not, every rank's call fails
/// with an error that shows both sides. If a rank fails or exits, every call fails with that first cause,
/// and so do all later calls. Dropping the last handle announces a clean exit.
///
/// A group and its [duplicates](ProcessGroup::duplicate) form a family. Two ranks that wait for each other in
/// different groups of a family are a mismatch, too, and fail after about half a second. Calls of other groups,
/// such as those that [`split`](ProcessGroup::split) makes, are never compared: another thread may still make the
/// call that a rank waits for. They end with their time-out.
pub struct ProcessGroup {
    shared: Arc<SharedGroup>,
    /// Whether the thread that uses this handle holds the call permit.
    has_permit: bool,
}

impl Clone for ProcessGroup {
    fn clone(&self) -> Self {
        ProcessGroup { shared: self.shared.clone(), has_permit: false }
    }
}

debug_text! {
    ProcessGroup, "ProcessGroup(rank {} of {}, {})",
    |group| group.rank(), group.world_size(), group.transport()
}

impl ProcessGroup {
    fn new(topology: Arc<Topology>, state: GroupState) -> Self {
        ProcessGroup { shared: Arc::new(SharedGroup::new(topology, state)), has_permit: false }
    }

    /// This rank's number in the group, from 0.
    pub fn rank(&self) -> usize {
        self.shared.state.world.rank
    }

    /// Number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.shared.state.world.size
    }

    /// Rank and world size.
    pub fn world(&self) -> World {
        self.shared.state.world
    }

    /// World rank of every rank of the group.
    pub fn members(&self) -> &[usize] {
        &self.shared.state.members
    }

    /// Name of the transport, as `--transport` spells it, or `solo`.
    pub fn transport(&self) -> &'static str {
        self.shared.state.comm.name()
    }

    /// The key-value store that all ranks of the job share, as PyTorch's `TCPStore`.
    ///
    /// All groups of the job have the same store. A key and its value may have 512 KiB together. Keys that begin with
    /// `burn-ddp/` are reserved.
    ///
    /// ```
    /// # use burn_ddp_comm::{Options, ProcessGroup};
    /// # use std::time::Duration;
    /// for group in ProcessGroup::threads(2, Options::default())? {
    ///     match group.rank() {
    ///         0 => group.store().set("port", b"8080")?,
    ///         _ => assert_eq!(group.store().get("port", Duration::from_secs(5))?, b"8080"),
    ///     }
    /// }
    /// # Ok::<(), burn_ddp_comm::Error>(())
    /// ```
    pub fn store(&self) -> Arc<dyn Store> {
        match &self.shared.topology.ranks {
            Ranks::Solo(store) => store.clone(),
            Ranks::Threads(control, _) | Ranks::Processes(control, _) => Arc::<Control>::clone(control),
        }
    }

    /// The first cause of failure, if the group has failed.
    pub fn failure(&self) -> Option<Error> {
        self.shared.cause()
    }

    /// Destroys the group on this rank once the calls in progress have returned.
    ///
    /// Later calls fail, also on clones. Destroying the group of all ranks, or the last open group,
    /// leaves the job; destroying a group made by [`split`](ProcessGroup::split) does not affect other
    /// groups. Dropping all handles has the same effect.
    pub fn destroy(self) {
        // Fails only if this thread is inside a call of the group, which then fails, too.
        let turn = self.shared.state.queue.take(|| ());
        self.shared.state.destroyed.store(true, Ordering::Release);
        self.detach();
        match self.shared.topology.control() {
            Some(control) if self.shared.state.group == init::WORLD => control.goodbye(),
            Some(control) => control.group_closed(),
            None => {}
        }
        drop(turn);
    }

    /// Fails the collectives of all ranks with `reason`.
    pub fn abort(&self, reason: impl Into<String>) {
        let rank = self.shared.state.members[self.shared.state.world.rank];
        let error = Error::PeerLost { rank, reason: reason.into() };
        let cause = self.shared.report(error);
        self.shared.state.abort();
        self.shared.state.record(&cause);
    }

    /// Runs several calls without calls of other threads in between.
    fn with_permit<R>(&self, act: impl FnOnce(&ProcessGroup) -> Result<R>) -> Result<R> {
        self.with_permit_and(|| (), |group, ()| act(group))
    }

    /// [`with_permit`](Self::with_permit), with a value that is created when the place among the group's calls is
    /// taken.
    fn with_permit_and<T, R>(
        &self,
        create: impl FnOnce() -> T,
        act: impl FnOnce(&ProcessGroup, T) -> Result<R>,
    ) -> Result<R> {
        if self.has_permit {
            return act(self, create());
        }
        let _waiting = self.shared.state.wait();
        let (_permit, value) = self.shared.state.queue.take(create)?;
        act(&ProcessGroup { shared: self.shared.clone(), has_permit: true }, value)
    }
}
