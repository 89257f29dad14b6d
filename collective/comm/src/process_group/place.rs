//! Collectives on a device that another thread than the caller's enqueues.

use super::{ProcessGroup, shared_group::SharedGroup, ticket_queue::Ticket};
use crate::{
    Call, Error, Result,
    transport::nccl::{DeviceCall, NcclCommunicator, Pending},
};
use std::{any::Any, ffi::c_void, sync::Arc};

impl ProcessGroup {
    /// Takes the place of a collective, which [`Place::enqueue`] enqueues later, on any thread.
    ///
    /// Collectives that this thread calls in between are enqueued behind it only if they wait for that, as those do
    /// whose memory is computed by the same queue of operations.
    ///
    /// `None`, and nothing is done, if the calls must be compared first, as in [`start_on_device`](Self::start_on_device),
    /// or another thread's operation holds the device.
    ///
    /// # Errors
    /// If the group has failed or has no device transport.
    pub fn place_on_device(&self, spec: Call) -> Result<Option<Place>> {
        if self.compares_first() {
            return Ok(None);
        }
        let ticket = self.attached()?.order.ticket(|| ()).0;
        if !ticket.follows_own() {
            return Ok(None);
        }
        ticket.adopt();
        self.place(spec, ticket).map(Some)
    }

    pub(super) fn place(&self, spec: Call, ticket: Ticket) -> Result<Place> {
        let call = DeviceCall::new(self.shared.next_call(spec.clone())?);
        // The comparison starts first, because NCCL may wait for the other ranks in a group's first call.
        drop(self.compare(spec, call.clone())?);
        Ok(Place { shared: self.shared.clone(), ticket, call, is_open: true })
    }
}

/// The place of a collective among those of its group and of its device.
///
/// If it is dropped instead of used, the group fails.
pub struct Place {
    shared: Arc<SharedGroup>,
    /// Later collectives wait until it is dropped.
    pub(super) ticket: Ticket,
    pub(super) call: DeviceCall,
    is_open: bool,
}

debug_text! { Place, "Place({})", |place| place.call.call() }

impl Place {
    /// Enqueues the collective, like [`ProcessGroup::start_on_device`].
    ///
    /// # Errors
    /// If the group has failed, or NCCL or the driver fails.
    pub fn enqueue(
        mut self,
        memory: Box<dyn Any + Send>,
        act: impl FnOnce(&NcclCommunicator, &Call, *mut c_void) -> Result<()>,
    ) -> Result<Pending> {
        let Some(attached) = self.shared.state.device.get() else { return Err(Error::Aborted) };
        self.is_open = false;
        let run = |nccl: &_, stream| act(nccl, self.call.call(), stream);
        attached.worker.run(self.call.clone(), memory, run).map_err(|error| self.shared.fail(error))
    }

    /// Fails the group, because the collective cannot be enqueued, and returns the first cause.
    pub fn fail(mut self, error: Error) -> Error {
        self.is_open = false;
        self.shared.fail(error)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_open {
            let reason = format!("its input was not computed ({})", self.call.call());
            let device = self.shared.state.device.get().map_or_else(String::new, |it| it.site.name());
            let _ = self.shared.fail(Error::Device { device, reason });
        }
    }
}
