//! The order in which the groups of a process enqueue collectives on a device.
//!
//! Each group has its own NCCL communicator and stream, and its collectives are enqueued by the calling thread or by
//! the group's worker. Events of the whole context connect the streams: a collective waits for all that was enqueued
//! before it, and later work waits for the collective. If one rank enqueues a collective of one group before one of
//! another group, and a second rank enqueues them in reverse, each device waits for a collective that the other one
//! has not begun, until the deadline.
//!
//! Therefore a collective takes a ticket of its device on the thread that calls it, and collectives are enqueued in
//! the order of the tickets. Tickets are in program order, which is the same on all ranks that call the same
//! collectives in the same order.
//!
//! A ticket that is dropped, after the collective is enqueued or after an error, releases its place.

use crate::{Error, Result, communicator::Call};
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
    time::Instant,
};

/// The tickets of one device.
#[derive(Debug, Default)]
pub(super) struct DeviceOrder {
    tickets: Mutex<Tickets>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    /// Tickets that are not released, with the thread of an operation that holds one.
    held: BTreeMap<u64, Option<ThreadId>>,
}

/// A place in the order, released when dropped.
#[derive(Debug)]
pub(super) struct DeviceTicket {
    order: Arc<DeviceOrder>,
    number: u64,
}

impl DeviceOrder {
    /// The order of the device with this identity, the same for all groups of the process.
    pub fn of(identity: String) -> Arc<Self> {
        static DEVICES: Mutex<Option<HashMap<String, Arc<DeviceOrder>>>> = Mutex::new(None);
        let mut devices = DEVICES.lock().unwrap_or_else(PoisonError::into_inner);
        devices.get_or_insert_default().entry(identity).or_default().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.tickets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the next place.
    pub fn ticket(self: &Arc<Self>) -> DeviceTicket {
        let mut tickets = self.lock();
        let number = tickets.next;
        tickets.next += 1;
        tickets.held.insert(number, None);
        DeviceTicket { order: self.clone(), number }
    }
}

impl DeviceTicket {
    /// Gives this place to all collectives that the current thread calls until the ticket is dropped.
    pub fn adopt(&self) {
        self.order.lock().held.insert(self.number, Some(thread::current().id()));
    }

    /// Waits until all earlier tickets are released, except one that this thread has adopted.
    ///
    /// # Errors
    /// [`Error::Timeout`] after the time limit of `call`.
    pub fn wait(&self, call: &Call) -> Result<()> {
        let (begun, current) = (Instant::now(), thread::current().id());
        let mut tickets = self.order.lock();
        loop {
            let first = tickets.held.first_key_value();
            if first.is_none_or(|(number, holder)| *number == self.number || *holder == Some(current)) {
                return Ok(());
            }
            let left = call.timeout.saturating_sub(begun.elapsed());
            if left.is_zero() {
                return Err(Error::Timeout {
                    call: call.to_string(),
                    seconds: call.timeout.as_secs_f64(),
                    absent: "all ranks have called it, but an earlier operation holds this rank's device"
                        .into(),
                });
            }
            tickets =
                self.order.released.wait_timeout(tickets, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for DeviceTicket {
    fn drop(&mut self) {
        self.order.lock().held.remove(&self.number);
        self.order.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CallSpec, DType};
    use std::time::Duration;

    fn call(milliseconds: u64) -> Call {
        CallSpec::new("all_reduce", DType::F32, 1).numbered(1, Duration::from_millis(milliseconds))
    }

    #[test]
    fn calls_follow_the_tickets_on_any_thread() {
        let (order, served) = (Arc::<DeviceOrder>::default(), Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..8).map(|_| order.ticket()).collect();
        thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let served = &served;
                scope.spawn(move || {
                    ticket.wait(&call(60_000)).unwrap();
                    served.lock().unwrap().push(ticket.number);
                });
            }
        });
        assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_dropped_ticket_releases_its_place() {
        let order = Arc::<DeviceOrder>::default();
        let [first, second, third] = [(); 3].map(|()| order.ticket());
        drop(second);
        let error = third.wait(&call(10)).unwrap_err();
        assert!(
            matches!(&error, Error::Timeout { absent, .. } if absent.contains("an earlier operation")),
            "{error}"
        );
        drop(first);
        third.wait(&call(10)).unwrap();
    }

    #[test]
    fn calls_of_an_operation_have_its_place() {
        let order = Arc::<DeviceOrder>::default();
        let (operation, inside) = (order.ticket(), order.ticket());
        inside.wait(&call(10)).unwrap_err();
        operation.adopt();
        inside.wait(&call(10)).unwrap();
        let elsewhere = thread::scope(|scope| scope.spawn(|| order.ticket().wait(&call(10))).join().unwrap());
        elsewhere.unwrap_err();
    }

    #[test]
    fn each_device_has_one_order() {
        let [first, again, other] = ["a device", "a device", "another"].map(|id| DeviceOrder::of(id.into()));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    }
}
