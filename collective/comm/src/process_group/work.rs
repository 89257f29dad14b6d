//! Collectives in the background: one worker thread per group runs them in the order in which they were
//! started, in sequence with the blocking ones.

use super::{ProcessGroup, group_state::GroupState, shared_group::Job, ticket_queue::TicketQueue};
use crate::{Call, Element, Error, ReduceOp, Result, sync::lock, transport::nccl::DeviceCall};
use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, TryRecvError, channel},
    },
    thread,
};

/// A collective in progress. Dropping it does not cancel the collective.
#[must_use = "the result, and the error, are in `wait`"]
pub struct Work<R> {
    result: Receiver<Result<R>>,
    early: Option<Result<R>>,
    /// The group in which [`Work::wait`] waits.
    group: Arc<GroupState>,
}

impl<R> fmt::Debug for Work<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Work")
    }
}

fn vanished<R>() -> Result<R> {
    Err(Error::Invalid("a background operation panicked".into()))
}

impl<R> Work<R> {
    /// Waits until the operation has finished. The deadlines of its calls bound the wait.
    ///
    /// # Errors
    /// The operation's error, or [`Error::Invalid`] if it panicked.
    pub fn wait(self) -> Result<R> {
        let _waiting = self.group.wait();
        self.early.unwrap_or_else(|| self.result.recv().unwrap_or_else(|_| vanished()))
    }

    /// Whether [`Work::wait`] would return without waiting.
    pub fn is_done(&mut self) -> bool {
        if self.early.is_none() {
            self.early = match self.result.try_recv() {
                Ok(result) => Some(result),
                Err(TryRecvError::Disconnected) => Some(vanished()),
                Err(TryRecvError::Empty) => None,
            };
        }
        self.early.is_some()
    }
}

impl ProcessGroup {
    /// Runs `act` in the background, between all earlier and all later calls of this group.
    ///
    /// `act` may make any number of calls on the group that it receives. If the group has a device transport, other
    /// groups' later collectives on the device wait until `act` has returned.
    ///
    /// ```
    /// # use burn_ddp_comm::{ProcessGroup, ReduceOp};
    /// # let group = ProcessGroup::solo();
    /// let mut gradients = vec![1f32; 1000];
    /// let work = group.start(move |group| {
    ///     group.all_reduce(&mut gradients, ReduceOp::Mean)?;
    ///     Ok(gradients)
    /// })?;
    /// // ... compute something else ...
    /// let gradients = work.wait()?;
    /// # Ok::<(), burn_ddp_comm::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Io`] if the worker thread cannot be started. All others come from [`Work::wait`].
    pub fn start<R: Send + 'static>(
        &self,
        act: impl FnOnce(&ProcessGroup) -> Result<R> + Send + 'static,
    ) -> Result<Work<R>> {
        self.start_in(self.shared.state.device.get().map(|attached| &attached.order), act)
    }

    /// [`start`](Self::start), which holds the device of `order`: none for calls in host memory.
    fn start_in<R: Send + 'static>(
        &self,
        order: Option<&Arc<TicketQueue>>,
        act: impl FnOnce(&ProcessGroup) -> Result<R> + Send + 'static,
    ) -> Result<Work<R>> {
        let (done, result) = channel();
        // Ticket and place in the worker's queue must be in one order.
        let mut jobs = lock(&self.shared.jobs);
        let queue = match &mut *jobs {
            Some(queue) => queue,
            none => none.insert(worker()?),
        };
        let group = ProcessGroup { shared: self.shared.clone(), has_permit: true };
        let (ticket, place) = self.shared.state.queue.ticket(|| order.map(|order| order.ticket(|| ()).0));
        let job: Job = Box::new(move || {
            ticket.wait(None);
            ticket.adopt();
            if let Some(place) = &place {
                place.adopt();
            }
            let outcome = catch_unwind(AssertUnwindSafe(|| act(&group)));
            drop((ticket, place));
            if outcome.is_err() {
                group.abort("a background operation panicked");
            }
            // Dropped before the result is sent, so that the user drops the last handle.
            drop(group);
            if let Ok(result) = outcome {
                // The receiver may have been dropped.
                let _ = done.send(result);
            }
        });
        if let Err(unsent) = queue.send(job) {
            // The worker ends only with the group; run the job here so that its ticket is served.
            (unsent.0)();
        }
        Ok(Work { result, early: None, group: self.shared.state.clone() })
    }

    /// Compares the ranks' calls in the background and registers the result in `device_call`.
    pub(super) fn compare(&self, spec: Call, device_call: DeviceCall) -> Result<Work<()>> {
        self.start_in(None, move |group| {
            group.shared.run(spec, None, |comm, call| {
                comm.barrier(call)?;
                device_call.compared(call);
                Ok(())
            })
        })
    }

    /// [`ProcessGroup::all_reduce`] in the background; `wait` returns the buffer.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::start`].
    pub fn all_reduce_async<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        self.start_in(None, move |group| group.all_reduce(&mut buffer, op).map(|()| buffer))
    }

    /// [`ProcessGroup::reduce_scatter`] in the background; `wait` returns this rank's part.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::start`].
    pub fn reduce_scatter_async<T: Element>(&self, mut buffer: Vec<T>, op: ReduceOp) -> Result<Work<Vec<T>>> {
        self.start_in(None, move |group| group.reduce_scatter(&mut buffer, op).map(|part| part.to_vec()))
    }

    /// [`ProcessGroup::broadcast`] in the background; `wait` returns the buffer.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::start`].
    pub fn broadcast_async<T: Element>(&self, mut buffer: Vec<T>, root: usize) -> Result<Work<Vec<T>>> {
        self.start_in(None, move |group| group.broadcast(&mut buffer, root).map(|()| buffer))
    }

    /// [`ProcessGroup::all_gather`] in the background.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::start`].
    pub fn all_gather_async<T: Element>(&self, mine: Vec<T>) -> Result<Work<Vec<Vec<T>>>> {
        self.start_in(None, move |group| group.all_gather(&mine))
    }

    /// [`ProcessGroup::barrier`] in the background.
    ///
    /// # Errors
    /// Those of [`ProcessGroup::start`].
    pub fn barrier_async(&self) -> Result<Work<()>> {
        self.start_in(None, |group| group.barrier())
    }
}

/// Starts a worker thread.
fn worker() -> Result<Sender<Job>> {
    let (jobs, waiting) = channel::<Job>();
    thread::Builder::new()
        .name("ddp-worker".into())
        .spawn(move || waiting.into_iter().for_each(|job| job()))
        .map_err(|e| Error::io("start the group's worker thread", &e))?;
    Ok(jobs)
}
