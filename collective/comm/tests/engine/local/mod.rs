//! The transports of one machine against a serial reference, and their behaviour when ranks fail.
//!
//! Ranks are threads, also those of `shm`, each with its own mapping of the memory.

mod collectives;
mod failures;
#[cfg(target_os = "linux")]
mod processes;

use burn_ddp_comm::{Call, Communicator, DType, ReduceOp, transport::thread::ThreadGroup};
use std::{thread, time::Duration};

const DTYPES: [DType; 7] =
    [DType::F32, DType::F64, DType::F16, DType::BF16, DType::I32, DType::I64, DType::U8];
const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Mean, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product];

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
    let group = ThreadGroup::create(world).unwrap();
    group.into_iter().map(|rank| Box::new(rank) as Box<dyn Communicator>).collect()
}

#[cfg(all(target_os = "linux", not(miri)))]
fn shared_memory(world: usize) -> Group {
    use burn_ddp_comm::transport::shm::{ShmCommunicator, ShmSegment};
    let made = ShmSegment::create(world).unwrap();
    let mut segments: Vec<_> = (1..world).map(|_| ShmSegment::open(made.name(), world).unwrap()).collect();
    segments.insert(0, made);
    thread::scope(|scope| {
        let connect =
            |(rank, segment)| scope.spawn(move || ShmCommunicator::connect(segment, rank, PATIENT).unwrap());
        let joined: Vec<_> = segments.into_iter().enumerate().map(connect).collect();
        joined.into_iter().map(|rank| Box::new(rank.join().unwrap()) as Box<dyn Communicator>).collect()
    })
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
