//! Who may make the group's next call: callers take a ticket and are served in that order, so that
//! the order of calls is the order in which they were asked for, whichever thread runs them.

use crate::{Error, Result};
use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, ThreadId},
};

#[derive(Debug, Default)]
struct State {
    next: u64,
    serving: u64,
    holder: Option<ThreadId>,
}

#[derive(Debug, Default)]
pub(super) struct Turns {
    state: Mutex<State>,
    moved: Condvar,
}

/// The right to make calls, until dropped.
pub(super) struct Turn<'a>(&'a Turns);

impl Turns {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the queue, which must be waited for with [`Turns::wait`].
    pub fn ticket(&self) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        state.next - 1
    }

    /// Waits for the calls before, each of which has its own deadline.
    pub fn wait(&self, ticket: u64) -> Turn<'_> {
        let mut state = self.lock();
        while state.serving != ticket {
            state = self.moved.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.holder = Some(thread::current().id());
        Turn(self)
    }

    /// Takes a ticket and waits. A thread that already has the turn would wait for itself.
    pub fn take(&self) -> Result<Turn<'_>> {
        if self.lock().holder == Some(thread::current().id()) {
            return Err(Error::Invalid(
                "a collective was called on the group from inside one of its own operations: use the group that is passed to the closure".into(),
            ));
        }
        Ok(self.wait(self.ticket()))
    }
}

impl Drop for Turn<'_> {
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
        let turns = Turns::default();
        let served = Mutex::new(Vec::new());
        let tickets: Vec<_> = (0..8).map(|_| turns.ticket()).collect();
        thread::scope(|scope| {
            for ticket in tickets.into_iter().rev() {
                let (turns, served) = (&turns, &served);
                scope.spawn(move || {
                    let _turn = turns.wait(ticket);
                    served.lock().unwrap().push(ticket);
                });
            }
        });
        assert_eq!(*served.lock().unwrap(), (0..8).collect::<Vec<_>>());
    }

    #[test]
    fn taking_a_turn_twice_is_an_error_and_not_a_deadlock() {
        let turns = Turns::default();
        let turn = turns.take().unwrap();
        assert!(turns.take().is_err());
        drop(turn);
        assert!(turns.take().is_ok());
    }
}
