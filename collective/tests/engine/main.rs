//! Collective communication without Burn: transports, rendezvous, groups, and failures of ranks.
//!
//! One program, because each would link the whole library.

mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod deadlocks;
mod failures;
mod features;
mod flight_records;
mod groups;
mod local;
#[cfg(feature = "mpi")]
mod mpi;
#[cfg(target_os = "linux")]
mod nccl;
#[cfg(target_os = "linux")]
mod process;
#[cfg(target_os = "linux")]
mod processes;
mod reference;
mod rendezvous;
mod stores;
#[cfg(target_os = "linux")]
mod two_machines;
