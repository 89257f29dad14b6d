//! Process groups, rendezvous and transports: collectives between threads, processes and machines.
//!
//! It is the lowest level of `burn-ddp`'s API, and does not depend on Burn:
//!
//! | level | you write | you get |
//! |---|---|---|
//! | [process groups](ProcessGroup) | everything | collectives on slices |
//!
//! The levels above it, and collectives on tensors, are in `burn-ddp-collective` and `burn-ddp`.
//!
//! ```
//! use burn_ddp_comm::{Options, ProcessGroup, ReduceOp};
//!
//! let groups = ProcessGroup::threads(2, Options::default())?;
//! std::thread::scope(|scope| {
//!     for group in groups {
//!         scope.spawn(move || {
//!             let mut numbers = [group.rank() as f32, 1.0];
//!             group.all_reduce(&mut numbers, ReduceOp::Sum).unwrap();
//!             assert_eq!(numbers, [1.0, 2.0]);
//!         });
//!     }
//! });
//! # Ok::<(), burn_ddp_comm::Error>(())
//! ```
//!
//! A transport implements [`Communicator`]. Collectives in device memory are enqueued by the caller with
//! [`ProcessGroup::run_on_device`], on a device that implements [`DeviceSite`](transport::nccl::DeviceSite).

#![warn(missing_docs)]

// Under this name the tests' reference uses it.
#[cfg(test)]
extern crate self as burn_ddp_comm;

#[macro_use]
mod macros;

pub mod communicator;
pub mod dtype;
pub mod error;
#[cfg(any(test, fuzzing))]
#[path = "../fuzz/properties.rs"]
pub mod fuzz;
mod process_group;
pub mod python;
pub mod reduce;
mod rendezvous;
mod sync;
pub mod transport;

pub use communicator::{Call, Communicator, World};
pub use dtype::{DType, Element, ReduceOp};
pub use error::{Error, Result, SettingDifference};
pub use process_group::{
    DevicePath, FlightRecord, JOB_ID, Options, Place, ProcessGroup, RENDEZVOUS_TIMEOUT, RecordedCall, Work,
    explain,
};
pub use rendezvous::store::{FileStore, HashStore, Store};
pub use rendezvous::{InitMethod, SECRET, Secret};
pub use rendezvous::{address, channel, host, listener};
pub use transport::Transport;
