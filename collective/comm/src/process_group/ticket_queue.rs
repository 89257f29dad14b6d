//! Serialises calls on any threads, in the order in which they take tickets: the calls of a group, and the collectives
//! of all groups of a process on one device.
//!
//! Each group has its own NCCL communicator and stream, and its collectives are enqueued by the calling thread or by
//! the group's worker. Events of the whole context connect the streams: a collective waits for all that was enqueued
//! before it, and later work waits for the collective. If one rank enqueues a collective of one group before one of
//! another group, and a second rank enqueues them in reverse, each device waits for a collective that the other one
//! has not begun, until the deadline.
//!
//! Therefore a collective takes a ticket of its device on the thread that calls it. Tickets are in program order, which
//! is the same on all ranks that call the same collectives in the same order.

use crate::{
    Error, Result,
    sync::{
        Condvar, Mutex, lock,
        thread::{self, ThreadId},
        wait,
    },
};
use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, LazyLock, PoisonError},
    time::{Duration, Instant},
};

#[derive(Debug, Default)]
pub(super) struct TicketQueue {
    tickets: Mutex<Tickets>,
    released: Condvar,
}

#[derive(Debug, Default)]
struct Tickets {
    next: u64,
    /// Tickets that are not released, in order, with the thread that calls under one.
    held: VecDeque<(u64, Option<ThreadId>)>,
}

/// A place in the queue, released when dropped: after the call, or after an error.
#[derive(Debug)]
pub(super) struct Ticket {
    queue: Arc<TicketQueue>,
    number: u64,
}

impl TicketQueue {
    /// The queue of the device with this identity, the same for all groups of the process.
    pub fn of_device(identity: String) -> Arc<Self> {
        static DEVICES: LazyLock<Mutex<HashMap<String, Arc<TicketQueue>>>> = LazyLock::new(Mutex::default);
        lock(&DEVICES).entry(identity).or_default().clone()
    }

    /// Takes the next place, and calls `with` before another place is taken.
    pub fn ticket<T>(self: &Arc<Self>, with: impl FnOnce() -> T) -> (Ticket, T) {
        let mut tickets = lock(&self.tickets);
        let number = tickets.next;
        tickets.next += 1;
        tickets.held.push_back((number, None));
        (Ticket { queue: self.clone(), number }, with())
    }

    /// Whether no call is queued or in progress.
    pub fn is_idle(&self) -> bool {
        lock(&self.tickets).held.is_empty()
    }

    /// Takes a [`ticket`](Self::ticket) and waits for it.
    ///
    /// # Errors
    /// [`Error::Invalid`] on the thread whose call is in progress, which would wait for itself.
    pub fn take<T>(self: &Arc<Self>, with: impl FnOnce() -> T) -> Result<(Ticket, T)> {
        if lock(&self.tickets).held.front().is_some_and(|(_, thread)| *thread == Some(thread::current().id()))
        {
            return Err(Error::Invalid(
                "a collective was called on the group from within one of its operations: use the group that is passed to the closure".into(),
            ));
        }
        let (ticket, value) = self.ticket(with);
        ticket.wait(None);
        ticket.adopt();
        Ok((ticket, value))
    }
}

impl Ticket {
    /// Gives this place to all calls of the current thread until the ticket is dropped.
    pub fn adopt(&self) {
        let mut tickets = lock(&self.queue.tickets);
        if let Some((_, thread)) = tickets.held.iter_mut().find(|(number, _)| *number == self.number) {
            *thread = Some(thread::current().id());
        }
    }

    /// Whether this thread has [adopted](Self::adopt) all earlier tickets that are not released.
    pub fn follows_own(&self) -> bool {
        let (tickets, current) = (lock(&self.queue.tickets), thread::current().id());
        let mut earlier = tickets.held.iter().take_while(|(number, _)| *number != self.number);
        earlier.all(|(_, thread)| *thread == Some(current))
    }

    /// Waits until all earlier tickets are released, except one that this thread has adopted. False after `limit`;
    /// without one, each of the earlier calls has a deadline.
    pub fn wait(&self, limit: Option<Duration>) -> bool {
        let (begun, current) = (Instant::now(), thread::current().id());
        let mut tickets = lock(&self.queue.tickets);
        loop {
            let first = tickets.held.front();
            if first.is_none_or(|(number, thread)| *number == self.number || *thread == Some(current)) {
                return true;
            }
            tickets = match limit.map(|limit| limit.saturating_sub(begun.elapsed())) {
                Some(Duration::ZERO) => return false,
                Some(left) => wait(&self.queue.released, tickets, left),
                None => self.queue.released.wait(tickets).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        lock(&self.queue.tickets).held.retain(|(number, _)| *number != self.number);
        self.queue.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Option<Duration> = Some(Duration::from_millis(10));

    #[test]
    fn calls_follow_the_tickets_on_any_thread() {
        let (queue, served) = (Arc::<TicketQueue>::default(), Mutex::new(Vec::new()));
        let tickets: Vec<_> = (0..8).map(|_| queue.ticket(|| ()).0).collect();
        thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let served = &served;
                scope.spawn(move || {
                    assert!(ticket.wait(None));
                    served.lock().unwrap().push(ticket.number);
                });
            }
        });
        assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>());
        assert!(queue.is_idle());
    }

    #[test]
    fn a_second_call_on_the_same_thread_is_an_error() {
        let queue = Arc::<TicketQueue>::default();
        let first = queue.take(|| ()).unwrap();
        assert!(queue.take(|| ()).is_err());
        drop(first);
        assert!(queue.take(|| ()).is_ok());
    }

    #[test]
    fn a_dropped_ticket_releases_its_place() {
        let queue = Arc::<TicketQueue>::default();
        let [first, second, third] = [(); 3].map(|()| queue.ticket(|| ()).0);
        drop(second);
        assert!(!third.wait(SOON));
        drop(first);
        assert!(third.wait(SOON));
    }

    #[test]
    fn calls_of_an_operation_have_its_place() {
        let queue = Arc::<TicketQueue>::default();
        let (operation, inside) = (queue.ticket(|| ()).0, queue.ticket(|| ()).0);
        assert!(!inside.wait(SOON));
        operation.adopt();
        assert!(inside.wait(SOON));
        let elsewhere = || queue.ticket(|| ()).0.wait(SOON);
        assert!(!thread::scope(|scope| scope.spawn(elsewhere).join().unwrap()));
    }

    #[test]
    fn a_place_behind_own_calls_is_told_from_one_behind_others() {
        let queue = Arc::<TicketQueue>::default();
        let [own, other, last] = [(); 3].map(|()| queue.ticket(|| ()).0);
        own.adopt();
        assert!(other.follows_own() && !last.follows_own());
        drop(other);
        assert!(last.follows_own());
        assert!(!thread::scope(|scope| scope.spawn(|| last.follows_own()).join().unwrap()));
    }

    #[test]
    fn each_device_has_one_queue() {
        let [first, again, other] =
            ["a device", "a device", "another"].map(|id| TicketQueue::of_device(id.into()));
        assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    }
}
