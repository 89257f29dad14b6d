//! A stream of random numbers for one replica, so that its layers draw the same numbers in every run.
//!
//! Burn's CPU backend has one generator for the whole process, from which replicas in several threads would draw
//! in an order that depends on scheduling. A replica that computes in [`RandomStream::scope`] draws from its own
//! stream instead.

use std::cell::RefCell;

type Generator = Box<dyn FnMut() -> u64 + Send>;

thread_local! {
    /// The stream whose scope this thread is in.
    static CURRENT: RefCell<Option<Generator>> = const { RefCell::new(None) };
}

/// A generator of 64-bit numbers.
pub struct RandomStream(Option<Generator>);

impl RandomStream {
    /// Creates a stream of the values that `generator` returns.
    pub fn new(generator: impl FnMut() -> u64 + Send + 'static) -> Self {
        Self(Some(Box::new(generator)))
    }

    /// The next number.
    pub fn draw(&mut self) -> Option<u64> {
        self.0.as_mut().map(|generator| generator())
    }

    /// Runs `act`, whose layers draw from this stream. The stream continues in the next scope, unless `act`
    /// panics.
    pub fn scope<R>(&mut self, act: impl FnOnce() -> R) -> R {
        /// Restores the stream of an outer scope, also after a panic.
        struct Restore(Option<Generator>);
        impl Drop for Restore {
            fn drop(&mut self) {
                let outer = self.0.take();
                // Fails only while the thread ends.
                let _ = CURRENT.try_with(|current| current.replace(outer));
            }
        }
        let restore = Restore(CURRENT.replace(self.0.take()));
        let result = act();
        self.0 = CURRENT.take();
        drop(restore);
        result
    }
}

/// The next number of the stream whose scope this thread is in.
pub(crate) fn draw() -> Option<u64> {
    CURRENT.with_borrow_mut(|current| current.as_mut().map(|generator| generator()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counting(from: u64) -> RandomStream {
        let mut next = from;
        RandomStream::new(move || {
            next += 1;
            next
        })
    }

    #[test]
    fn a_stream_continues_in_the_next_scope() {
        assert_eq!(draw(), None);
        let (mut outer, mut inner) = (counting(0), counting(100));
        outer.scope(|| {
            assert_eq!(draw(), Some(1));
            inner.scope(|| assert_eq!(draw(), Some(101)));
            assert_eq!(draw(), Some(2));
        });
        assert_eq!(outer.draw(), Some(3));
        outer.scope(|| assert_eq!(draw(), Some(4)));
        assert_eq!(draw(), None);
    }

    #[test]
    fn a_panic_ends_the_scope() {
        let run = || counting(0).scope(|| panic!("a layer"));
        assert!(std::panic::catch_unwind(run).is_err());
        assert_eq!(draw(), None);
    }
}
