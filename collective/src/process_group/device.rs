//! A group's device data plane: NCCL under the control of the group's own transport.

use super::{
    ProcessGroup,
    inner::{Inner, Spec},
};
use crate::{
    DType, Error, ReduceOp, Result,
    communicator::Call,
    transport::nccl::{DeviceSite, NcclCommunicator, Pending, Plane, UniqueId},
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

/// How long ranks wait for each other when they leave.
const FAREWELL: Duration = Duration::from_secs(5);

/// What a group has on its devices.
#[derive(Debug)]
pub(super) struct Attached {
    pub site: Arc<dyn DeviceSite>,
    pub plane: Plane,
}

/// How tensors on a device are exchanged from now on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DevicePath {
    /// In device memory; the text names the library and its version.
    Nccl(String),
    /// Through host memory, because of this.
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

/// What a rank says of its device before a communicator is made.
#[derive(Clone, Serialize, Deserialize)]
struct Offer {
    name: String,
    identity: String,
    version: String,
}

/// A collective on device memory.
#[derive(Clone, Copy, Debug)]
pub struct DeviceCall {
    /// Such as `all_reduce`; equal on all ranks.
    pub operation: &'static str,
    /// Type of the elements.
    pub dtype: DType,
    /// Elements, as [`NcclCommunicator`]'s method counts them.
    pub count: usize,
    /// Of what reduces.
    pub reduce: Option<ReduceOp>,
    /// Of what has one.
    pub root: Option<usize>,
}

impl ProcessGroup {
    /// Gives the group a data plane on its ranks' devices, for tensors that are there. Every rank
    /// must call it; a rank without such a device passes why. Groups that are split off later get one
    /// too. If one rank cannot, none does, and all learn why.
    ///
    /// # Errors
    /// If the group fails.
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
        let id = self.on_rank_zero(|| site.unique_id().map(|id| id.bytes().to_vec()));
        let id = id.transpose().map_err(|error| error.to_string());
        let id = match self.broadcast_object(&id, 0)? {
            Ok(id) => id.and_then(|id| UniqueId::from_bytes(&id)),
            Err(why) => return Ok(DevicePath::Host(format!("rank {}: {why}", self.members()[0]))),
        };
        let Some(id) = id else { return Err(Error::Invalid("rank 0 sent no NCCL id".into())) };
        let made = self.plane(site.as_ref(), &id);
        let word = made.as_ref().map(|_| ()).map_err(Error::to_string);
        if let Some(why) = self.first_failure(&self.all_gather_object(&word)?) {
            if let Ok(plane) = &made {
                plane.abort();
            }
            return Ok(DevicePath::Host(why));
        }
        let path = DevicePath::Nccl(site.library()?.to_string());
        let attached = Attached { site, plane: made? };
        if self.inner.core.device.set(attached).is_err() {
            return Err(Error::Invalid("the group has a device data plane already".into()));
        }
        Ok(path)
    }

    fn plane(&self, site: &dyn DeviceSite, id: &UniqueId) -> Result<Plane> {
        let (core, library) = (&self.inner.core, site.library()?);
        // The stream is made first, because it makes the device this thread's.
        let stream = site.stream()?;
        let communicator = NcclCommunicator::init(library, id, core.world, self.inner.site.patience())?;
        let group = Arc::downgrade(&self.inner);
        let failed = move |call: &Call, error| {
            if let Some(inner) = group.upgrade() {
                inner.device_failed(call, error);
            }
        };
        Plane::new(communicator, stream, Box::new(failed))
    }

    /// Why the ranks cannot use what they have, in their own words.
    fn objection(&self, offers: &[Result<Offer, String>]) -> Option<String> {
        if let Some(why) = self.first_failure(offers) {
            return Some(why);
        }
        let mut seen: HashMap<&str, usize> = HashMap::new();
        for (rank, offer) in offers.iter().flatten().enumerate() {
            let first = *seen.entry(&offer.identity).or_insert(rank);
            if first != rank {
                let [first, rank] = [first, rank].map(|rank| self.members()[rank]);
                return Some(format!(
                    "ranks {first} and {rank} share one GPU ({}), which NCCL does not allow",
                    offer.name
                ));
            }
        }
        let version =
            |offer: &Result<Offer, String>| offer.as_ref().map(|o| o.version.clone()).unwrap_or_default();
        let other = (1..offers.len()).find(|rank| version(&offers[*rank]) != version(&offers[0]))?;
        let (ours, theirs) = (version(&offers[0]), version(&offers[other]));
        let [first, other] = [0, other].map(|rank| self.members()[rank]);
        Some(format!(
            "rank {first} has NCCL {ours}, but rank {other} {theirs}: install one version everywhere"
        ))
    }

    fn first_failure<T>(&self, words: &[Result<T, String>]) -> Option<String> {
        let failed = |(rank, word): (usize, &Result<T, String>)| {
            word.as_ref().err().map(|why| format!("rank {}: {why}", self.members()[rank]))
        };
        words.iter().enumerate().find_map(failed)
    }

    /// Like a split-off group's parent, if that has a device data plane.
    pub(super) fn attach_like(&self, parent: &ProcessGroup) -> Result<()> {
        let Some(attached) = parent.inner.core.device.get() else { return Ok(()) };
        if self.world_size() > 1 {
            self.attach(Ok(attached.site.clone()))?;
        }
        Ok(())
    }

    /// The device on which the group exchanges data, as its site names it.
    pub fn device(&self) -> Option<String> {
        self.inner.core.device.get().map(|attached| attached.site.name())
    }

    /// Makes one collective on device memory: the ranks agree on it on the host, then `act` puts it
    /// on the stream that it is given. Returns when that is done, before the device is through with
    /// it; what the device is given later waits for it there. `memory` is kept until then.
    ///
    /// # Errors
    /// If the group fails, or has no device data plane.
    pub fn run_on_device(
        &self,
        call: DeviceCall,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let Some(Attached { plane, .. }) = self.inner.core.device.get() else {
            return Err(Error::Invalid("the group has no device data plane; attach one first".into()));
        };
        let DeviceCall { operation, dtype, count, reduce, root } = call;
        let root = root.map(|root| self.inner.check_rank("root", root)).transpose()?;
        let spec = Spec { operation, dtype, count, reduce, root };
        self.run(spec, |comm, call| {
            comm.barrier(call)?;
            plane.run(call, memory, |nccl, stream| act(nccl, call, stream))
        })
    }

    /// Frees the device data plane in good order.
    pub(super) fn detach(&self) {
        if let Some(attached) = self.inner.core.device.get() {
            attached.plane.destroy(FAREWELL);
        }
    }
}

impl Inner {
    /// A call that went onto the device and did not end well there. On the watchdog's thread.
    fn device_failed(&self, call: &Call, error: Error) {
        if self.core.destroyed.load(Ordering::Acquire) {
            return;
        }
        let error = match error {
            Error::Io { what, reason } => Error::Io { what: format!("{call}: {what}"), reason },
            other => other,
        };
        let cause = self.arbiter.as_ref().map_or(error.clone(), |arbiter| arbiter.fail(error));
        self.end(cause.clone());
        self.core.comm.abort();
        self.core.write_flight_record(&cause);
    }
}

fn offer(site: &dyn DeviceSite) -> Result<Offer, String> {
    let found = || {
        let library = site.library()?;
        Ok(Offer { name: site.name(), identity: site.identity()?, version: library.version() })
    };
    found().map_err(|error: Error| error.to_string())
}
