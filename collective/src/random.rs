//! Random numbers of a thread's own, for operations that must draw the same in every run.
//!
//! Burn's CPU backend has one generator for the whole process. Replicas that are threads of it would
//! draw in whatever order they come, so each gets a stream: the training strategy seeds the thread that
//! trains before every step, and that one its replicas.

use crate::sampler::mix;
use std::cell::Cell;

thread_local! {
    /// The stream's seed, and how many numbers were drawn.
    static STREAM: Cell<Option<(u64, u64)>> = const { Cell::new(None) };
}

/// Begins this thread's stream anew, from `seed`.
pub fn seed(seed: u64) {
    STREAM.set(Some((seed, 0)));
}

/// The next number of this thread's stream. `None` if it has none: the device's generator must do.
pub fn draw() -> Option<u64> {
    let (seed, drawn) = STREAM.get()?;
    STREAM.set(Some((seed, drawn + 1)));
    Some(mix(seed, drawn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_draws_what_its_seed_says() {
        let numbers = |with| {
            std::thread::spawn(move || {
                assert_eq!(draw(), None);
                seed(with);
                [draw(), draw(), draw()]
            })
            .join()
            .expect("no panic")
        };
        assert_eq!(numbers(7), numbers(7));
        assert_ne!(numbers(7), numbers(8));
        assert!(numbers(7)[0] != numbers(7)[1]);
    }
}
