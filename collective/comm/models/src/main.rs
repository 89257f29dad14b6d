//! Model checking: code of `burn-ddp-comm` in every order of its threads, or in many if there are too many.
//!
//! Shuttle replaces locks, atomics and threads (`sync`) and lets one thread run at a time, so that every atomic access is
//! sequentially consistent, as all accesses of these files are. A thread that is not woken is a deadlock, which fails
//! the program. Each model is shown to find a mistake.

mod futex;
mod sync;

#[path = "../../src/process_group/ticket_queue.rs"]
#[allow(dead_code)]
mod ticket_queue;
#[path = "../../src/transport/local/wait.rs"]
#[allow(dead_code)]
mod wait;

use futex as os;
use shuttle::{
    Config, FailurePersistence, Runner,
    scheduler::{DfsScheduler, RandomScheduler},
};
use std::{
    panic::{UnwindSafe, catch_unwind, set_hook},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};
use sync::{Mutex, lock, thread};
use ticket_queue::TicketQueue;
use wait::Word;

/// The errors of the code under test.
#[derive(Debug)]
pub enum Error {
    #[allow(dead_code)]
    Invalid(String),
}

pub type Result<T, E = Error> = std::result::Result<T, E>;

const LONG: Duration = Duration::from_secs(3600);
/// Number of orders of a model that has too many.
const RANDOM_ORDERS: usize = 20_000;

/// Ranks sleep until as many others have arrived at a gate.
fn gate(sleepers: usize, arrivals: u32) {
    let word = Arc::new(Word::default());
    let threads: Vec<_> = (0..sleepers)
        .map(|_| {
            let word = word.clone();
            thread::spawn(move || {
                while !word.reached(arrivals) {
                    word.sleep(arrivals, LONG);
                }
            })
        })
        .collect();
    for _ in 0..arrivals {
        let word = word.clone();
        thread::spawn(move || {
            if word.increment() == arrivals {
                word.wake();
            }
        });
    }
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// A rank starts a collective of one group in the background, and calls one of another group.
///
/// `in_order` tells whether the collectives take tickets of the device.
fn collectives_of_two_groups(in_order: bool) {
    let [gradients, statistics, device] = [(); 3].map(|()| Arc::<TicketQueue>::default());
    let enqueued = Arc::new(Mutex::new(Vec::new()));
    let place = |queue: &Arc<TicketQueue>| in_order.then(|| queue.ticket(|| ()).0);
    let (ticket, outer) = gradients.ticket(|| place(&device));
    let worker = {
        let (device, enqueued) = (device.clone(), enqueued.clone());
        thread::spawn(move || {
            ticket.wait(None);
            ticket.adopt();
            outer.iter().for_each(|outer| outer.adopt());
            let inner = in_order.then(|| device.ticket(|| ()).0);
            assert!(inner.is_none_or(|inner| inner.wait(Some(LONG))));
            lock(&enqueued).push("gradients");
        })
    };
    let (_permit, ticket) = statistics.take(|| place(&device)).expect("not within a call");
    assert!(ticket.as_ref().is_none_or(|ticket| ticket.wait(Some(LONG))));
    lock(&enqueued).push("statistics");
    drop(ticket);
    worker.join().expect("no panic");
    assert_eq!(*lock(&enqueued), ["gradients", "statistics"]);
    assert!(device.is_idle() && gradients.is_idle());
}

/// Threads call on one group. `in_turn` tells whether they take tickets.
fn one_call_at_a_time(threads: usize, in_turn: bool) {
    let (queue, calling) = (Arc::<TicketQueue>::default(), Arc::new(Mutex::new(false)));
    let threads: Vec<_> = (0..threads)
        .map(|_| {
            let (queue, calling) = (queue.clone(), calling.clone());
            thread::spawn(move || {
                let _permit = in_turn.then(|| queue.take(|| ()).expect("not within a call"));
                assert!(!std::mem::replace(&mut *lock(&calling), true), "two calls at once");
                *lock(&calling) = false;
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    assert!(queue.is_idle());
}

/// `reports` tells whether a failing order is printed.
fn config(reports: bool) -> Config {
    let mut config = Config::new();
    config.silence_warnings = true;
    if !reports {
        config.failure_persistence = FailurePersistence::None;
    }
    config
}

/// Runs a model in all orders, and returns their number.
fn all_orders(model: impl Fn() + Send + Sync + 'static, config: Config) -> usize {
    Runner::new(DfsScheduler::new(None, false), config).run(model)
}

fn random_orders(model: impl Fn() + Send + Sync + 'static) -> usize {
    Runner::new(RandomScheduler::new(RANDOM_ORDERS), config(true)).run(model)
}

/// Checks that a model with a mistake fails.
fn finds(mistake: &str, model: impl Fn() + Send + Sync + UnwindSafe + 'static) {
    assert!(catch_unwind(|| all_orders(model, config(false))).is_err(), "{mistake}: not found");
    println!("{mistake}: found");
}

fn main() {
    println!("one sleeper, one arrival: all {} orders", all_orders(|| gate(1, 1), config(true)));
    println!("two sleepers, two arrivals: {} orders", random_orders(|| gate(2, 2)));
    println!(
        "collectives of two groups on one device: {} orders",
        random_orders(|| collectives_of_two_groups(true))
    );
    println!("three calls of one group: {} orders", random_orders(|| one_call_at_a_time(3, true)));

    // Their panics are expected.
    set_hook(Box::new(|_| {}));
    finds("calls without tickets", || one_call_at_a_time(2, false));
    finds("collectives without tickets", || collectives_of_two_groups(false));
    os::COMPARES.store(false, Ordering::Relaxed);
    finds("a futex that does not compare", || gate(1, 1));
}
