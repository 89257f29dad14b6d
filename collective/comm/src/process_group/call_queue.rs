//! Serialises the calls of a group: callers take tickets and are served in that order, on any thread.

use crate::{Error, Result};
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

#[derive(Debug, Default)]
struct QueueState {
    next: u64,
    serving: u64,
    holder: Option<ThreadId>,
}

#[derive(Debug, Default)]
pub(super) struct CallQueue {
    state: Mutex<QueueState>,
    moved: Condvar,
}

/// Permission to make calls, until dropped.
pub(super) struct CallPermit<'a>(&'a CallQueue);

impl CallQueue {
    fn lock(&self) -> MutexGuard<'_, QueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a place in the queue, to be waited for with [`CallQueue::wait`], and calls `with` before another place
    /// is taken.
    pub fn ticket<T>(&self, with: impl FnOnce() -> T) -> (u64, T) {
        let mut state = self.lock();
        state.next += 1;
        (state.next - 1, with())
    }

    /// Whether no call is queued or in progress.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.next == state.serving
    }

    /// Waits for the calls ahead in the queue, each of which has a deadline.
    pub fn wait(&self, ticket: u64) -> CallPermit<'_> {
        let mut state = self.lock();
        while state.serving != ticket {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.holder = Some(thread::current().id());
        CallPermit(self)
    }

    /// Takes a [`ticket`](CallQueue::ticket) and waits for it. Fails on the thread that holds the permit, which
    /// would wait for itself.
    ///
    /// # Errors
    /// [`Error::Invalid`] on the thread that holds the permit.
    pub fn take<T>(&self, with: impl FnOnce() -> T) -> Result<(CallPermit<'_>, T)> {
        if self.lock().holder == Some(thread::current().id()) {
            return Err(Error::Invalid(
                "a collective was called on the group from within one of its operations: use the group that is passed to the closure".into(),
            ));
        }
        let (ticket, value) = self.ticket(with);
        Ok((self.wait(ticket), value))
    }
}

impl Drop for CallPermit<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.serving += 1;
        state.holder = None;
        drop(state);
        self.0.moved.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tickets_are_served_in_order() {
        let queue = CallQueue::default();
        let served = Mutex::new(Vec::new());
        let tickets: Vec<_> = (0..8).map(|_| queue.ticket(|| ()).0).collect();
        thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (queue, served) = (&queue, &served);
                scope.spawn(move || {
                    let _permit = queue.wait(ticket);
                    served.lock().unwrap().push(ticket);
                });
            }
        });
        assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn a_second_permit_on_the_same_thread_is_an_error() {
        let queue = CallQueue::default();
        let turn = queue.take(|| ()).unwrap();
        assert!(queue.take(|| ()).is_err());
        drop(turn);
        assert!(queue.take(|| ()).is_ok());
    }
}
