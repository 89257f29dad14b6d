//! A group's device transport: NCCL, controlled through the group's own transport.

use super::{
    ProcessGroup,
    group_state::DeviceTransport,
    shared_group::SharedGroup,
    ticket_queue::{Ticket, TicketQueue},
};
use crate::{
    Call, Error, Result, Transport,
    transport::nccl::{DeviceCall, DeviceSite, NcclCommunicator, NcclWorker, Pending, UniqueId},
};
use serde::{Deserialize, Serialize};
use std::{
    any::Any,
    collections::HashMap,
    ffi::c_void,
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

/// Time limit for destroying the NCCL communicator together with the other ranks.
const DETACH_TIMEOUT: Duration = Duration::from_secs(5);

/// How tensors on a device are exchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevicePath {
    /// In device memory, through the library named in the text.
    Nccl(String),
    /// Through host memory, for the reason in the text.
    Host(String),
}

impl fmt::Display for DevicePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DevicePath::Nccl(library) => f.write_str(library),
            DevicePath::Host(why) => write!(f, "host memory: {why}"),
        }
    }
}

/// A rank's device and NCCL version, exchanged before a communicator is created.
#[derive(Clone, Serialize, Deserialize)]
struct Offer {
    name: String,
    identity: String,
    version: String,
}

impl ProcessGroup {
    /// Creates an NCCL communicator over the devices of all ranks.
    ///
    /// Every rank must call it; a rank without such a device passes the reason. If one rank cannot use NCCL,
    /// no rank does, and all receive the reason. Groups that are split off later get a communicator, too.
    ///
    /// # Errors
    /// If the group fails or has a device transport already.
    pub fn attach(&self, site: Result<Arc<dyn DeviceSite>, String>) -> Result<DevicePath> {
        let offer = site.as_ref().map_err(String::clone).and_then(|site| offer(site.as_ref()));
        let offers = self.all_gather_object(&offer)?;
        if let Some(why) = self.objection(&offers) {
            return Ok(DevicePath::Host(why));
        }
        let site = match site {
            Ok(site) => site,
            Err(why) => return Ok(DevicePath::Host(why)),
        };
        let id = match self.run_on(0, || site.library()?.unique_id()) {
            Ok(id) => id,
            Err(Error::Remote { rank, reason }) => {
                return Ok(DevicePath::Host(format!("rank {rank}: {reason}")));
            }
            Err(error) => return Err(error),
        };
        let started = self.start_worker(site.as_ref(), id);
        let outcome = started.as_ref().map(|_| ()).map_err(Error::to_string);
        if let Some(why) = self.first_failure(&self.all_gather_object(&outcome)?) {
            if let Ok(worker) = &started {
                worker.abort();
            }
            return Ok(DevicePath::Host(why));
        }
        let path = DevicePath::Nccl(site.library()?.to_string());
        let order = TicketQueue::of_device(site.identity()?);
        let attached = DeviceTransport { site, worker: started?, order };
        if self.shared.state.device.set(attached).is_err() {
            return Err(Error::Invalid("the group has a device transport already".into()));
        }
        Ok(path)
    }

    fn start_worker(&self, site: &dyn DeviceSite, id: UniqueId) -> Result<NcclWorker> {
        let (state, library, stream) = (&self.shared.state, site.library()?, site.stream()?);
        let timeout = self.shared.topology.options.join_timeout();
        let communicator = NcclCommunicator::init(library, &id, state.world, &stream, timeout)?;
        let group = Arc::downgrade(&self.shared);
        let failed = move |call: &Call, error| {
            if let Some(shared) = group.upgrade() {
                shared.device_failed(call, error);
            }
        };
        NcclWorker::new(communicator, stream, Box::new(failed))
    }

    /// The reason why the ranks cannot share a communicator.
    fn objection(&self, offers: &[Result<Offer, String>]) -> Option<String> {
        if let Some(why) = self.first_failure(offers) {
            return Some(why);
        }
        let offers: Vec<&Offer> = offers.iter().flatten().collect();
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (rank, offer) in offers.iter().enumerate() {
            let first = *seen.entry(&offer.identity).or_insert(rank);
            if first != rank {
                let [first, rank] = [first, rank].map(|rank| self.members()[rank]);
                return Some(format!(
                    "ranks {first} and {rank} share one GPU ({}), which NCCL does not allow",
                    offer.name
                ));
            }
        }
        let other = offers.iter().position(|offer| offer.version != offers[0].version)?;
        let [first, rank] = [0, other].map(|rank| self.members()[rank]);
        let [ours, theirs] = [0, other].map(|rank| &offers[rank].version);
        Some(format!(
            "rank {first} has NCCL {ours}, but rank {rank} {theirs}: install one version everywhere"
        ))
    }

    fn first_failure<T>(&self, outcomes: &[Result<T, String>]) -> Option<String> {
        let failed = |(rank, outcome): (usize, &Result<T, String>)| {
            outcome.as_ref().err().map(|why| format!("rank {}: {why}", self.members()[rank]))
        };
        outcomes.iter().enumerate().find_map(failed)
    }

    /// Attaches this group's devices if those of `parent` are attached.
    pub(super) fn attach_like(&self, parent: &ProcessGroup) -> Result<()> {
        let Some(attached) = parent.shared.state.device.get() else { return Ok(()) };
        if self.world_size() > 1 || parent.world_size() == 1 {
            self.attach(Ok(attached.site.clone()))?;
        }
        Ok(())
    }

    /// Name of the device on which the group exchanges data, such as `cuda:0`.
    pub fn device(&self) -> Option<String> {
        self.shared.state.device.get().map(|attached| attached.site.name())
    }

    /// Runs one collective on device memory and returns before the device has finished it.
    ///
    /// The ranks first compare their calls on the host. Then `act` enqueues the collective on the stream that it
    /// receives, behind all work submitted to the device so far; work submitted later waits for it on the device.
    /// Collectives of all groups are enqueued on a device in the order in which they are called or started.
    /// `memory` is kept until the device has finished.
    ///
    /// # Errors
    /// If the group fails or has no device transport, the ranks' calls differ, or NCCL or the driver fails.
    pub fn run_on_device(
        &self,
        call: Call,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let pending = self.compare_and_enqueue(call, memory, act)?;
        pending.hold_device()?;
        Ok(pending)
    }

    /// Compares the ranks' calls, and then enqueues the collective.
    fn compare_and_enqueue(
        &self,
        call: Call,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let DeviceTransport { worker, order, .. } = self.attached()?;
        self.with_permit_and(
            || order.ticket(|| ()).0,
            |group, ticket| {
                group.shared.run(call, None, |comm, call| {
                    comm.barrier(call)?;
                    wait_for_device(&ticket, call)?;
                    let compared = DeviceCall::new(call.clone()).compared(call);
                    worker.run(compared, memory, |nccl, stream| act(nccl, call, stream))
                })
            },
        )
    }

    /// Enqueues a collective like [`run_on_device`](Self::run_on_device), without waiting for the other ranks.
    ///
    /// The group's worker thread compares the ranks' calls, with the group's time limit. If they differ or a rank is
    /// absent, the group fails, and so do its later calls. Nothing on the device waits for the collective until
    /// [`Pending::hold_device`].
    ///
    /// The calls are compared first if the ranks are threads, because a rank that copies from the device of another one
    /// would wait there for a collective that waits for itself, and inside an operation of [`start`](Self::start).
    ///
    /// # Errors
    /// If the group has failed or has no device transport, or NCCL or the driver fails.
    pub fn start_on_device(
        &self,
        spec: Call,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        if self.compares_first() {
            return self.compare_and_enqueue(spec, memory, act);
        }
        let place = self.place(spec, self.attached()?.order.ticket(|| ()).0)?;
        match wait_for_device(&place.ticket, place.call.call()) {
            Ok(()) => place.enqueue(memory, act),
            Err(error) => Err(place.fail(error)),
        }
    }

    /// Whether a collective is enqueued only after the ranks' calls are compared.
    pub(super) fn compares_first(&self) -> bool {
        self.has_permit || self.transport() == Transport::Thread.name()
    }

    pub(super) fn attached(&self) -> Result<&DeviceTransport> {
        let attached = self.shared.state.device.get();
        attached.ok_or_else(|| Error::Invalid("the group has no device transport; attach one first".into()))
    }

    /// Destroys the NCCL communicator together with the other ranks.
    pub(super) fn detach(&self) {
        if let Some(attached) = self.shared.state.device.get() {
            attached.worker.destroy(DETACH_TIMEOUT);
        }
    }
}

impl SharedGroup {
    /// Fails the group after a call has failed on the device. Runs on the watchdog's thread.
    fn device_failed(&self, call: &Call, error: Error) {
        if self.state.destroyed.load(Ordering::Acquire) {
            return;
        }
        let error = match error {
            Error::Io { what, reason } => Error::Io { what: format!("{call}: {what}"), reason },
            other => other,
        };
        let cause = self.report(error);
        self.state.comm.abort();
        self.state.write_flight_record(&cause);
    }
}

/// Waits until earlier operations on the device have enqueued their collectives, within the time limit of `call`.
fn wait_for_device(ticket: &Ticket, call: &Call) -> Result<()> {
    if ticket.wait(Some(call.timeout)) {
        return Ok(());
    }
    let absent = "all ranks have called it, but an earlier operation holds this rank's device";
    Err(Error::timeout(call, call.timeout, absent))
}

fn offer(site: &dyn DeviceSite) -> Result<Offer, String> {
    let found = || {
        let library = site.library()?;
        Ok(Offer { name: site.name(), identity: site.identity()?, version: library.version() })
    };
    found().map_err(|error: Error| error.to_string())
}
