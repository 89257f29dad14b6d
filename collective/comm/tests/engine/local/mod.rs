//! The transports of one machine without a process group: many calls, messages, and ranks that fail.
//!
//! Ranks are threads, also those of `shm`, each with its own mapping of the memory.

mod calls;
mod failures;

use burn_ddp_comm::{Call, Communicator, DType, transport::thread::ThreadGroups};
use std::{thread, time::Duration};

/// Long enough for a loaded machine; no test waits for it to pass.
const PATIENT: Duration = Duration::from_secs(120);

type Group = Vec<Box<dyn Communicator>>;

/// Creates a group with a number of ranks.
type Make = fn(usize) -> Group;

/// All transports of this system.
#[cfg(all(target_os = "linux", not(miri)))]
const TRANSPORTS: [Make; 2] = [threads, shared_memory];
#[cfg(any(not(target_os = "linux"), miri))]
const TRANSPORTS: [Make; 1] = [threads];

fn threads(world: usize) -> Group {
    let groups = ThreadGroups::default();
    (0..world).map(|rank| Box::new(groups.join(0, rank, world).unwrap()) as Box<dyn Communicator>).collect()
}

#[cfg(all(target_os = "linux", not(miri)))]
fn shared_memory(world: usize) -> Group {
    use burn_ddp_comm::transport::shm::ShmSegment;
    let made = ShmSegment::create(world).unwrap();
    let mut segments: Vec<_> = (1..world).map(|_| ShmSegment::open(made.name(), world).unwrap()).collect();
    segments.insert(0, made);
    let join = |(rank, segment): (usize, ShmSegment)| segment.join(rank).unwrap();
    segments.into_iter().enumerate().map(|rank| Box::new(join(rank)) as Box<dyn Communicator>).collect()
}

/// A call whose fields the tests modify.
fn call(seq: u64, operation: &'static str, count: usize) -> Call {
    Call::new(operation, DType::F32, count).numbered(seq, PATIENT)
}

/// Runs `act` on every rank concurrently; returns the results in rank order.
fn on_all<R: Send>(group: &Group, act: impl Fn(usize, &dyn Communicator) -> R + Sync) -> Vec<R> {
    thread::scope(|scope| {
        let act = &act;
        let running: Vec<_> = group
            .iter()
            .enumerate()
            .map(|(rank, communicator)| scope.spawn(move || act(rank, communicator.as_ref())))
            .collect();
        running.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}
