//! Collective communication: transports, rendezvous, groups, and failures of ranks.
//!
//! One program, because each would link the whole library.

mod case;
mod collectives;
#[path = "../common/mod.rs"]
mod common;
mod deadlocks;
mod failures;
mod flight_records;
mod groups;
mod local;
#[cfg(target_os = "linux")]
mod many_ranks;
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

/// Source of the NCCL stand-in.
#[cfg(target_os = "linux")]
const NCCL_STAND_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/nccl_stand_in/nccl.rs");
